"""Train models on the same ten million words, and ask each of them BLiMP's minimal pairs.

    python experiments/minimal_pairs/run.py --data ../shared/data --work runs/pairs

It selects the text (text.py), makes a store for each kind of tokenizer, trains or counts each
model, scores it on BabyLM's filtered BLiMP and on its supplement, and prints the table (table.py).
What is done already is not done again: kill the command at any time and start it again.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import table
import text

VOCABULARY = 8192


class Model(NamedTuple):
    """A row of the table. recipe: None for a body that is not trained."""

    recipe: str | None
    tokenizer: str = "wordpiece"


MODELS = {
    "frequencies": Model("ngram.py:order=1"),
    "kn5": Model("ngram.py:order=5"),
    "untrained": Model(None),
    "lstm": Model("lstm.py:small,tokens={tokens}"),
    "bert": Model("bert.py:mini"),
    "roberta": Model("roberta.py:mini", "bpe"),
    "electra": Model("electra.py:mini"),
    "gpt": Model("gpt.py:mini", "bpe"),
    "xlnet": Model("xlnet.py:mini", "unigram"),
    "modernbert": Model("modernbert.py:mini"),
    "modernbert-tiny": Model("modernbert.py:tiny"),
}
UNTRAINED = dict(  # 6 x 256: the body whose speed is measured as well
    family="bert",
    vocab_size=VOCABULARY,
    num_layers=6,
    hidden_size=256,
    num_heads=4,
    intermediate_size=1024,
    max_length=128,
)
SETS = {
    "blimp": ["--pairs={}/blimp.jsonl.gz", "--only={}/babylm_filtered_pair_ids.json.gz"],
    "supplement": ["--pairs={}/babylm_supplement_filtered.jsonl.gz"],
}


def firth(*argv) -> None:
    """Run the command; what it prints goes where this process prints."""
    subprocess.run([sys.executable, "-m", "firth", *map(str, argv)], check=True)


def prepare(work: Path, kind: str) -> Path:
    """The store of a kind of tokenizer, made once."""
    store = work / f"store-{kind}"
    if not (store / "manifest.json").exists():
        made = [f"--tokenizer={work / f'tokenizer-{kind}'}", f"--train-tokenizer={kind}"]
        source = f"--input={work / 'text.jsonl'}"
        firth("prepare", source, *made, f"--vocab-size={VOCABULARY}", f"--output={store}")
    return store


def train(name: str, work: Path, store: Path, epochs: float, steps: int | None) -> None:
    """Train to the end, from the newest checkpoint if there is one."""
    from firth.data.corpus.store import open_store
    from firth.recipe import read_recipe

    tokens = len(open_store(store).tokens)
    if (work / name / "ngram.safetensors").exists():
        return
    recipe = MODELS[name].recipe.format(tokens=tokens)
    fields = [f"--config.data.store={store}"]
    if not recipe.startswith("ngram.py"):
        config = read_recipe(recipe)
        own = int(epochs * tokens / (config.batch_size * config.data.length))
        fields += [f"--config.steps={steps or own}", "--config.curves=False"]
    firth("train", f"--config={recipe}", f"--workdir={work / name}", *fields)


def untrained(directory: Path, tokenizer: Path) -> None:
    """Write a body with the initial values of its family, its masked head and the tokenizer."""
    import jax
    import numpy as np

    from firth.models.model import create
    from firth.weights.read import Saved
    from firth.weights.write import write_firth

    made = create(UNTRAINED, ("mlm",)).init(jax.random.key(0), np.zeros((1, 4), int))["params"]
    params = jax.tree.map(np.asarray, jax.device_get(made))
    saved = Saved(
        UNTRAINED, ("mlm",), 2, None, False, params, directory, "firth", tokenizer_path=tokenizer
    )
    write_firth(directory, saved)


def evaluate(name: str, work: Path, blimp: Path, options: list[str]) -> None:
    """Score a model on each set, once."""
    for which, argv in SETS.items():
        output = work / f"{name}-{which}.json"
        if not output.exists():
            given = [option.format(blimp) for option in argv]
            firth("evaluate", f"--models={work / name}", *given, *options, f"--output={output}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"))
    add("--work", type=Path, default=Path("runs/pairs"))
    add("--models", default=",".join(MODELS), help=", ".join(MODELS))
    add("--epochs", type=float, default=10, help="of the neural models, at most 10")
    add("--steps", type=int, help="instead of epochs")
    add("--within-word", action="store_true", help="as `firth evaluate --within-word`")
    args = parser.parse_args()
    if not 0 < args.epochs <= 10:
        parser.error("--epochs: expected more than 0 and at most 10")
    names = args.models.split(",")
    if unknown := set(names) - set(MODELS):
        parser.error(f"--models: {min(unknown)} is unknown; choose from {', '.join(MODELS)}")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    work = args.work.resolve()
    if not (work / "text.jsonl").exists():
        counts = text.write(args.data, work / "text.jsonl")
        (work / "counts.json").write_text(json.dumps(counts) + "\n")
    for name in names:
        model = MODELS[name]
        store = prepare(work, model.tokenizer)
        if model.recipe:
            train(name, work, store, args.epochs, args.steps)
        elif not (work / name).exists():
            untrained(work / name, work / f"tokenizer-{model.tokenizer}")
        masked = name in ("bert", "roberta", "modernbert", "modernbert-tiny", "untrained")
        options = ["--within-word"] if args.within_word and masked else []
        evaluate(name, work, (args.data / "blimp").resolve(), options)
    print("\n".join(table.lines(work, names)))


if __name__ == "__main__":
    main()
