"""Language models of characters on Tiny Shakespeare: counts, and an LSTM.

    python experiments/characters/run.py --work runs/characters
    python experiments/characters/run.py --work runs/characters --rows kn6,lstm-tiny
    python experiments/characters/run.py --table

The models learn the first nine tenths of the text and are measured on the last tenth, in bits per
character, line ends included. The text is that of the folder of shared data (FIRTH_DATA).
Everything is done by `firth` commands in one process each. What is done already is not done again,
and a run goes on after its newest checkpoint: stop it at any time and start the same command. A
line a row goes to results.jsonl beside this file.
"""

import argparse
import gzip
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from commands import call, printed, settings
from measured import read_results, seconds_spent

RESULTS = Path(__file__).with_name("results.jsonl")
DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEXT = "tinyshakespeare/input.txt.gz"
PROMPT, LENGTH, TEMPERATURES = "ROMEO:\n", 400, (0.5, 0.8, 1.0)
FALLBACK = "(0.5,1.0,1.5)"  # most single characters are frequent: their counts give no discounts


@dataclass(frozen=True)
class Row:
    """One line of the table. `counted`: the text is counted, and there are no steps."""

    title: str
    recipe: str
    counted: bool = False


def ngram(order: int) -> Row:
    title = f"{order}-gram, modified Kneser-Ney"
    return Row(title, f"ngram.py:order={order}", counted=True)


ROWS = {
    "unigram": Row("how often each character is", "ngram.py:order=1,smoothing=add_k", counted=True),
    **{f"kn{order}": ngram(order) for order in (2, 3, 4, 5, 6, 7, 8)},
    "lstm-tiny": Row("LSTM of 128, 5 epochs", "char_lstm.py:tiny"),
    "lstm": Row("LSTM of 384, 9 epochs", "char_lstm.py:small"),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/characters"), help="data and runs")
    parser.add_argument("--rows", help=f"of {', '.join(ROWS)} (all)")
    parser.add_argument("--table", action="store_true", help="print what results.jsonl holds")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(read_results(RESULTS))))
        return 0
    chosen = args.rows.split(",") if args.rows else list(ROWS)
    if unknown := [name for name in chosen if name not in ROWS]:
        raise SystemExit(f"no row {unknown[0]!r}; rows: {', '.join(ROWS)}")
    make_data(args.work)
    for name in chosen:
        if any(entry["row"] == name for entry in read_results(RESULTS)):
            continue
        entry = {"row": name} | measure(args.work, name, ROWS[name])
        print(json.dumps(entry), flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


def make_data(work: Path):
    """The two texts, and their stores; the characters are those of the training text."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "test.txt").exists():
        with gzip.open(DATA / TEXT, "rt", encoding="utf-8", newline="") as file:
            text = file.read()
        border = len(text) * 9 // 10
        (work / "train.txt").write_text(text[:border], encoding="utf-8", newline="")
        (work / "test.txt").write_text(text[border:], encoding="utf-8", newline="")
    for name in ("train", "test"):
        if not (work / name / "manifest.json").exists():
            given = (f"--input={work / name}.txt", f"--tokenizer={work / 'characters'}")
            more = ("--train-tokenizer=char",) if name == "train" else ()
            kept = ("--sentences=newline", "--document=file", f"--output={work / name}")
            call("prepare", *given, *more, *kept)


def measure(work: Path, name: str, row: Row) -> dict:
    """Train, and measure the held-out text as one stream; of a network also samples."""
    began = time.time()
    fields = {"data.store": work / "train"}
    if row.counted:
        fields |= {"data.ends": "none", "model.discount_fallback": FALLBACK}
    else:
        # The last step is measured, not the one that is best on the held-out text.
        fields |= {"data.heldout_store": work / "test", "checkpoint.best": ""}
    workdir = work / name
    call("train", f"--config={row.recipe}", f"--workdir={workdir}", *settings(fields))
    entry = {"seconds": round(time.time() - began)}
    changes = {"eval.batch_size": 1, "eval.batches": 1_000_000}
    if row.counted:
        changes = {"data.heldout_store": work / "test"}
    else:
        entry = {"seconds": round(seconds_spent(workdir)), "samples": samples(workdir)}
    found = json.loads(printed("evaluate", f"--workdir={workdir}", "--json", *settings(changes)))
    return {"bits": round(found["heldout/bits_per_character"], 4)} | entry


def samples(workdir: Path) -> dict[str, str]:
    """A text of each temperature."""
    given = (f"--model={workdir}", f"--prompt={PROMPT}", f"--tokens={LENGTH}", "--seed=0")
    return {str(t): printed("generate", *given, f"--temperature={t}") for t in TEMPERATURES}


def table(results: list[dict]) -> list[str]:
    """Markdown: a line for each row that has a result."""
    bits = {entry["row"]: entry for entry in results}
    lines = ["| model | bits per character | minutes |", "|---|---|---|"]
    for name, row in ROWS.items():
        if entry := bits.get(name):
            minutes = entry["seconds"] / 60
            lines.append(f"| {row.title} | {entry['bits']:.3f} | {minutes:.1f} |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
