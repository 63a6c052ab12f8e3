"""Language models on the Penn Treebank, from counts to networks with memory, by one evaluator.

    python experiments/ptb/run.py --data ../shared/data/ptb --work runs/ptb
    python experiments/ptb/run.py --data ../shared/data/ptb --work runs/ptb --rows lstm-small
    python experiments/ptb/run.py --table

The first runs the rows that take minutes. Everything is done by `firth` commands in one process
each, which are printed. What is done already is not done again, and a run goes on after its newest
checkpoint: stop it at any time and start the same command. `--minutes` stops each training after
so long; it is then recorded as unfinished, with the perplexity of the validation text by epoch. A
line a row goes to results.jsonl beside this file; the last line of a row counts.
"""

import argparse
import json
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from commands import call, command, printed, settings
from measured import read_results, seconds_spent

from firth.training.journal import read_journal

RESULTS = Path(__file__).with_name("results.jsonl")
SPLITS = ("train", "valid", "test")
TUNED = (50, 200, 1000)  # tokens of the three caches that are best on the validation text


@dataclass(frozen=True)
class Row:
    """One line of the table: a model of its own (`recipe`), or a mixture of rows (`members`).

    `published`: the test perplexity and where it stands. `options`: further ones of evaluation.
    """

    title: str
    published: str = ""
    recipe: str = ""
    fields: dict = field(default_factory=dict)
    members: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    long: bool = False  # an hour or more, so it runs only by its name


def ngram(order: int, smoothing: str) -> str:
    return f"ngram.py:order={order},smoothing={smoothing}"


MIKOLOV, KENLM = "Mikolov et al. 2011", "KenLM"
KN = "modified_kneser_ney"
ROWS = {
    "gt3": Row("3-gram, Good-Turing", f"165.2, {MIKOLOV}", ngram(3, "katz")),
    "gt5": Row("5-gram, Good-Turing", f"162.3, {MIKOLOV}", ngram(5, "katz")),
    "kn3": Row("3-gram, modified Kneser-Ney", f"148.28, {KENLM}", ngram(3, KN)),
    "kn5": Row("5-gram, modified Kneser-Ney", f"141.19, {KENLM}", ngram(5, KN)),
    "kn5-cache": Row(
        "the same and a cache of 200 words",
        f"125.7, {MIKOLOV}",
        members=("kn5",),
        options=("--cache=200",),
    ),
    "kn5-caches": Row(
        "the same and caches of 50, 200 and 1,000",
        f"125.7, {MIKOLOV}",
        members=("kn5",),
        options=(f"--cache={','.join(map(str, TUNED))}",),
    ),
    "me5": Row("5-gram, maximum entropy", f"142.1, {MIKOLOV}", "maxent.py:order=5"),
    "kn5-me5-cache": Row(
        "both 5-grams and a cache of 200 words", members=("kn5", "me5"), options=("--cache=200",)
    ),
    "feedforward": Row("feed-forward", f"140.2, {MIKOLOV}", "feedforward.py:small", long=True),
    "log-bilinear": Row(
        "log-bilinear", f"144.5, {MIKOLOV}", "feedforward.py:small,kind=log_bilinear", long=True
    ),
    "rnn": Row("RNN, 200 units, 8 rows", f"124.7, {MIKOLOV}", "rnn.py:small,rows=8", long=True),
    "rnn-kn5": Row("it and the 5-gram", f"105.7, {MIKOLOV}", members=("rnn", "kn5"), long=True),
    "rnn-one": Row("RNN, 200 units, 1 row", f"124.7, {MIKOLOV}", "rnn.py:small", long=True),
    "rnn-one-kn5": Row(
        "it and the 5-gram", f"105.7, {MIKOLOV}", members=("rnn-one", "kn5"), long=True
    ),
    "lstm-small": Row("LSTM, small", "114.5, Zaremba et al. 2014", "lstm.py:small", long=True),
    "lstm-medium": Row("LSTM, medium", "82.7, Zaremba et al. 2014", "lstm.py:medium", long=True),
    "lstm-large": Row("LSTM, large", "78.4, Zaremba et al. 2014", "lstm.py:large", long=True),
    "char-cnn-lstm": Row(
        "LSTM of words from characters, small",
        "92.3, Kim et al. 2016",
        "char_cnn_lstm.py:small",
        long=True,
    ),
    "rhn": Row("recurrent highways, depth 10", "65.4, Zilly et al. 2017", "rhn.py", long=True),
    "melis-10m": Row("LSTM of 10 M", "59.6, Melis et al. 2018", "melis.py:10m_d1", long=True),
    "melis-24m": Row("4 LSTMs of 24 M", "58.3, Melis et al. 2018", "melis.py:24m_d4", long=True),
    "awd-lstm": Row("AWD-LSTM", "58.8, Merity et al. 2018", "awd_lstm.py", long=True),
    "transformer-xl": Row(
        "Transformer-XL, 1.7 M parameters",
        "54.5 with 24 M, Dai et al. 2019",
        "transformer_xl.py:tiny",
        {"steps": 4000, "eval.every": 500, "eval.batches": 200, "eval.batch_size": 4},
        options=("--window=64",),
        long=True,
    ),
}


def main():
    args = parser().parse_args()
    if args.table:
        print("\n".join(table(newest(read_results(RESULTS)))))
        return 0
    if missing := [split for split in SPLITS if not source(args, split).exists()]:
        raise SystemExit(f"{source(args, missing[0])} is missing; --data DIR has ptb.*.txt or .gz")
    chosen = args.rows.split(",") if args.rows else [n for n, row in ROWS.items() if not row.long]
    if unknown := [name for name in chosen if name not in ROWS]:
        raise SystemExit(f"no row {unknown[0]!r}; rows: {', '.join(ROWS)}")
    prepare(args)
    done = newest(read_results(RESULTS))
    for name in chosen:
        row = ROWS[name]
        if done.get(name, {}).get("finished") and not args.again:
            print(f"{row.title}: test {done[name]['test']:.2f}, measured already")
            continue
        entry = {"row": name, "time": time.strftime("%Y-%m-%d"), **machine()}
        entry |= measure(args, name, row)
        print(json.dumps(entry), flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


def parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data/ptb"))
    parser.add_argument("--work", type=Path, default=Path("runs/ptb"), help="of stores and runs")
    parser.add_argument("--rows", help=f"of {', '.join(ROWS)} (those that take minutes)")
    parser.add_argument("--minutes", type=float, help="stop each training after so long")
    parser.add_argument("--again", action="store_true", help="measure what is measured already")
    parser.add_argument("--table", action="store_true", help="print what results.jsonl holds")
    return parser


def source(args, split: str) -> Path:
    """The text of a split, packed or not."""
    plain = args.data / f"ptb.{split}.txt"
    return plain if plain.exists() else plain.with_name(plain.name + ".gz")


def prepare(args):
    """The three stores; the words are those of the training text."""
    for split in SPLITS:
        store = args.work / split
        if not (store / "manifest.json").exists():
            call(
                "prepare",
                *(f"--input={source(args, split)}", f"--tokenizer={args.work / 'tokenizer'}"),
                *("--sentences=line", f"--output={store}"),
                *(["--train-tokenizer=word"] if split == "train" else []),
            )


def measure(args, name: str, row: Row) -> dict:
    """Train what the row needs, and measure the test text; of an unfinished run, its curve."""
    spent, finished = 0.0, True
    for member in row.members or (name,):
        began = time.time()
        finished &= train(training(args, member), args.minutes)
        spent += seconds_spent(args.work / member) or time.time() - began
    entry = {"seconds": round(spent), "finished": finished, "seed": 0}
    if curve := validation(args.work / name):
        entry["validation"] = curve
    if finished:
        models = ",".join(str(args.work / member) for member in row.members or (name,))
        argv = [f"--models={models}", f"--data={args.work / 'test'}", *row.options]
        argv += [f"--tune={args.work / 'valid'}"] if row.members else []
        measured = json.loads(printed("evaluate", *argv, "--json"))[-1]
        entry["test"] = measured["measures"]["lm_perplexity"]
        entry["weights"] = measured["weights"]
    return entry


def training(args, name: str) -> list[str]:
    """The command that trains a row."""
    row = ROWS[name]
    fields = {"data.store": args.work / "train"}
    if not row.recipe.startswith("ngram"):
        fields["data.heldout_store"] = args.work / "valid"
    argv = ["train", f"--config={row.recipe}", f"--workdir={args.work / name}"]
    return argv + settings(fields | row.fields)


def train(argv: list[str], minutes: float | None) -> bool:
    """Run to the end, or for so long; whether the training has ended. SIGTERM makes it save."""
    with subprocess.Popen(command(*argv)) as process:
        try:
            status = process.wait(minutes and 60 * minutes)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
            return False
        except KeyboardInterrupt:
            process.wait()
            raise
    if status:
        raise SystemExit(status)
    return True


def validation(workdir: Path) -> list[tuple[int, float]]:
    """(step, perplexity of the validation text) wherever the run measured it."""
    key = "eval/heldout/lm_perplexity"
    if not (workdir / "metrics.jsonl").exists():
        return []
    entries = (entry for entry in read_journal(workdir) if key in entry)
    return [(entry["step"], round(entry[key], 2)) for entry in entries]


def machine() -> dict:
    """The commit and the processor."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    hardware = f"{len(names)} x {names[0]}" if names else platform.processor()
    return {"commit": commit, "hardware": hardware}


def newest(results: list[dict]) -> dict[str, dict]:
    """{row: its last result}."""
    return {entry["row"]: entry for entry in results}


def table(results: dict[str, dict]) -> list[str]:
    """Markdown: ours beside the published figures, a line for each row that has a result."""
    lines = ["| model | test | published | validation | minutes |", "|---|---|---|---|---|"]
    for name, row in ROWS.items():
        if entry := results.get(name):
            step, valid = (entry.get("validation") or [(0, None)])[-1]
            test = f"{entry['test']:.2f}" if entry["finished"] else f"unfinished, at step {step:,}"
            validation = f"{valid:.1f}" if valid else ""
            lines.append(
                f"| {row.title} | {test} | {row.published} | {validation} | "
                f"{entry['seconds'] / 60:.1f} |"
            )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
