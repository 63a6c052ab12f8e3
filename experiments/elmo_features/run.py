"""ELMo's frozen vectors against GloVe's and random ones, in a tagger; both learn the same text.

    python experiments/elmo_features/run.py --data ../shared/data --workdir runs/elmo_features \\
        [--seeds 0,1] [--tasks ner,pos] [--variants random,glove,elmo_0,elmo_mix,glove_elmo_mix]

Stages: the text of experiments/tagger/text.py and its stores; a small ELMo, beside n-gram models of
the same text; GloVe; then a tagger for each seed, task and variant. What is done is not done again,
and a run that was stopped goes on: start the same command. Writes perplexity.json, results.jsonl (a
line a run, as soon as it ends) and results.md into the workdir.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from commands import OWN, call, printed, settings
from measured import shown
from options import some_of

VOCABULARY, SPLITS = 30_000, ("dev", "test")
# The ELMo: twice `tiny`'s width, and the characters of all but the longest words.
ELMO = {
    "model.cell_size": 256,
    "model.hidden_size": 128,
    "model.max_characters": 20,
    "data.max_characters": 20,
    "objective.samples": 1024,
    "eval.every": 500,
    "eval.batches": 20,
    "checkpoint.minutes": 2.0,
    "log_every": 50,
}
GLOVE = {"model.window": 8, "model.x_max": 10.0, "epochs": 10}
NGRAMS = {"unigram": "ngram.py:order=1,smoothing=add_k", "kneser_ney_3": "ngram.py:order=3"}
# task -> (train, dev, test) under --data, the metric
TASKS = {
    "ner": ("conll2003/eng.train", "conll2003/eng.testa", "conll2003/eng.testb", "entity_f1"),
    "pos": (
        *(f"ud_english_ewt/en_ewt-ud-{split}.conllu" for split in ("train", "dev", "test")),
        "accuracy",
    ),
}
# variant -> (whether words begin with GloVe's vectors, the layers of ELMo)
VARIANTS = {
    "random": (False, ""),
    "glove": (True, ""),
    "elmo_0": (False, "embeddings"),
    "elmo_mix": (False, "mix"),
    "glove_elmo_mix": (True, "mix"),
}


def train(recipe: str, workdir: Path, fields: dict) -> None:
    """Train, or go on."""
    call("train", f"--config={recipe}", f"--workdir={workdir}", *settings(fields))


def stores(args) -> dict:
    """The text and its stores; the fields that name them."""
    train_text, test_text = args.workdir / "wiki.txt", args.workdir / "wiki-test.txt"
    found = {"data.store": args.workdir / "train", "data.heldout_store": args.workdir / "test"}
    if not all(store.is_dir() for store in found.values()):
        script = Path(__file__).parents[1] / "tagger" / "text.py"
        names = ("--data", args.data, "--output", train_text, "--test", test_text)
        if code := subprocess.run([sys.executable, script, *names], env=OWN).returncode:
            sys.exit(code)
    trained = ("--train-tokenizer", "word", "--vocab-size", VOCABULARY)
    for text, store in zip((train_text, test_text), found.values(), strict=True):
        more = trained if text == train_text else ()
        if not store.is_dir():
            common = ("--tokenizer", args.workdir / "tok", "--sentences", "line")
            call("prepare", "--input", text, "--output", store, *common, *more)
    return found


def language_models(args, fields: dict) -> None:
    """ELMo, its released layout in bilm/, and perplexities of it and of n-grams."""
    if not (args.workdir / "bilm").is_dir():
        steps = {"steps": args.elmo_steps}
        train("elmo.py:tiny,tokens=9900000", args.workdir / "elmo", fields | ELMO | steps)
        call("convert", "--from", args.workdir / "elmo", "--to", args.workdir / "bilm")
    path = args.workdir / "perplexity.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in ("elmo", *NGRAMS):
        if name in found:
            continue
        more = {"eval.batches": 10_000} if name == "elmo" else fields
        if name in NGRAMS:
            train(NGRAMS[name], args.workdir / name, {"data.store": fields["data.store"]})
            more = {"data.heldout_store": fields["data.heldout_store"]}
        where = f"--workdir={args.workdir / name}"
        found[name] = json.loads(printed("evaluate", where, "--json", *settings(more)))
        path.write_text(json.dumps(found, indent=1) + "\n")


def glove(args, fields: dict) -> None:
    """GloVe's vectors of the same text, in glove.vec."""
    if not (args.workdir / "glove.vec").exists():
        store = {"data.store": fields["data.store"]}
        train("glove.py:dim=50", args.workdir / "glove", store | GLOVE)
        call("convert", "--from", args.workdir / "glove", "--to", args.workdir / "glove.vec")


def tagger(args, task: str, variant: str) -> tuple[str, dict]:
    """(recipe, fields) of a run, without its seed."""
    with_glove, layers = VARIANTS[variant]
    features = f",features={args.workdir / 'bilm'},layers={layers}" if layers else ""
    fields = {
        f"data.{split}": args.data / name
        for split, name in zip(("train", "dev", "test"), TASKS[task][:3], strict=True)
    }
    fields |= {"epochs": args.epochs, "checkpoint.keep": 1, "curves": False}
    if with_glove:
        fields["data.vectors"] = args.workdir / "glove.vec"
    if layers:
        fields["data.feature_folder"] = args.workdir / "features"
    return f"tagger.py:tiny,length=64,crf={args.crf}{features}", fields


def run(args, task: str, variant: str, seed: int) -> None:
    """Train, and leave the run's line in line.json of its folder."""
    name = f"{task}-{variant}{'-crf' if args.crf else ''}-{args.epochs:g}-epochs-{seed}"
    folder = args.workdir / "taggers" / name
    if (folder / "line.json").exists():
        return
    recipe, fields = tagger(args, task, variant)
    train(recipe, folder, fields | {"seeds": str(seed)})
    summary, metric = json.loads((folder / "summary.json").read_text()), TASKS[task][-1]
    line = dict(task=task, crf=args.crf, variant=variant, epochs=args.epochs, metric=metric)
    line |= {"seed": seed} | {split: summary[f"{split}/{metric}"]["mean"] for split in SPLITS}
    (folder / "line.json").write_text(json.dumps(line) + "\n")


def write_results(workdir: Path) -> str:
    """Gather the lines of all runs that ended, of other calls too; the table."""
    texts = [path.read_text() for path in workdir.glob("taggers/*/line.json")]
    place = lambda row: (*group(row)[:2], list(VARIANTS).index(row["variant"]), row["seed"])  # noqa: E731
    rows = sorted(map(json.loads, texts), key=place)
    (workdir / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (workdir / "results.md").write_text(table(rows))
    return table(rows)


def group(row: dict) -> tuple:
    """What seeds have in common."""
    return row["task"], row["crf"], row["variant"], row["epochs"]


def table(rows: list[dict]) -> str:
    """Markdown: the mean of each task and variant, with the deviation of its seeds."""
    lines = ["| task | vectors | epochs | dev | test | seeds |", "|---|---|---|---|---|---|"]
    for key in dict.fromkeys(map(group, rows)):
        own = [row for row in rows if group(row) == key]
        task, crf, variant, epochs = key
        cells = [shown([100 * row[split] for row in own]) for split in SPLITS]
        seeds = ", ".join(str(row["seed"]) for row in own)
        named = f"{task}{' with a CRF' if crf else ''}, {own[0]['metric']}"
        lines.append(f"| {named} | {variant} | {epochs:g} | {' | '.join(cells)} | {seeds} |")
    return "\n".join(lines) + "\n"


def main(argv=None) -> None:
    """Do what is not done yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, required=True)
    add("--workdir", type=Path, required=True)
    add("--seeds", default="0,1")
    add("--tasks", type=some_of(TASKS), default=list(TASKS))
    add("--variants", type=some_of(VARIANTS), default=list(VARIANTS))
    add("--elmo-steps", type=int, default=4000, help="of 640 words; 4,000: a quarter of the text")
    add("--epochs", type=float, default=3.0, help="of a tagger")
    add("--crf", action="store_true")
    args = parser.parse_args(argv)
    args.workdir.mkdir(parents=True, exist_ok=True)
    fields, chosen = stores(args), [VARIANTS[name] for name in args.variants]
    if any(with_glove for with_glove, _ in chosen):
        glove(args, fields)
    if any(layers for _, layers in chosen):
        language_models(args, fields)
    for seed in map(int, args.seeds.split(",")):
        for task in args.tasks:
            for variant in args.variants:
                run(args, task, variant, seed)
                write_results(args.workdir)
    print(write_results(args.workdir), end="")


if __name__ == "__main__":
    main()
