"""Seconds and memory of a modified Kneser-Ney 5-gram on texts of 1 to 45 million words.

    python experiments/ngram_scale/run.py --work runs/ngram_scale
    python experiments/ngram_scale/run.py --table

The texts are the first words of novels, Wikipedia and film reviews, a document after the other
from each in turn, in the folder of shared data (FIRTH_DATA). Each is prepared, counted and smoothed
by `firth` commands in one process each, of which the operating system says the time and the
greatest memory. What is done already is not done again. A line a size goes to results.jsonl.
"""

import argparse
import contextlib
import json
import lzma
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from commands import command
from measured import read_results

RESULTS = Path(__file__).with_name("results.jsonl")
DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
SOURCES = (
    "english_novels/novels.jsonl.xz",
    "wikipedia_en_sample/articles.jsonl.xz",
    "imdb/unsup.jsonl.xz",
    "imdb/train.jsonl.xz",
    "imdb/test.jsonl.xz",
)
MILLIONS = (1, 3, 10, 20, 45)
TEST_WORDS = 100_000  # the last words of all
VOCABULARY = 200_000


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/ngram_scale"), help="data and runs")
    parser.add_argument("--millions", help=f"of words ({','.join(map(str, MILLIONS))})")
    parser.add_argument("--table", action="store_true", help="print what results.jsonl holds")
    args = parser.parse_args()
    if args.table:
        print("\n".join(table(read_results(RESULTS))))
        return 0
    sizes = map(int, args.millions.split(",")) if args.millions else MILLIONS
    make_texts(args.work)
    for size in sizes:
        if any(entry["millions"] == size for entry in read_results(RESULTS)):
            continue
        entry = measure(args.work, size)
        print(json.dumps(entry), flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


def make_texts(work: Path):
    """all.txt, a paragraph a line, and test.txt, whose words are not in it."""
    if (work / "test.txt").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    lines = list(paragraphs())
    size = 0
    for border in range(len(lines) - 1, 0, -1):
        size += len(lines[border].split())
        if size >= TEST_WORDS:
            break
    (work / "all.txt").write_text("\n".join(lines[:border]) + "\n", encoding="utf-8")
    (work / "test.txt").write_text("\n".join(lines[border:]) + "\n", encoding="utf-8")


def paragraphs() -> Iterator[str]:
    """Lines of text, of a document of each source in turn while it has any."""
    with contextlib.ExitStack() as stack:
        opened = (stack.enter_context(lzma.open(DATA / name)) for name in SOURCES)
        sources = [map(json.loads, file) for file in opened]
        while sources:
            for source in list(sources):
                if document := next(source, None):
                    text = document["text"].replace("<br />", "\n")
                    yield from filter(None, map(str.strip, text.splitlines()))
                else:
                    sources.remove(source)


def measure(work: Path, millions: int) -> dict:
    """Prepare and count the first words; seconds and gigabytes of both, and of the test text."""
    folder = work / str(millions)
    folder.mkdir(exist_ok=True)
    words = first_words(work / "all.txt", folder / "text.txt", millions * 10**6)
    tokenizer, train, test = (folder / name for name in ("tokenizer", "train", "test"))
    prepare = ("prepare", f"--tokenizer={tokenizer}", "--workers=1", "--overwrite")
    made = ("--train-tokenizer=word", f"--vocab-size={VOCABULARY}")
    prepared = run(*prepare, f"--input={folder / 'text.txt'}", f"--output={train}", *made)
    run(*prepare, f"--input={work / 'test.txt'}", f"--output={test}")
    shutil.rmtree(folder / "kn5", ignore_errors=True)
    workdir = f"--workdir={folder / 'kn5'}"
    counted = run("train", "--config=ngram.py:order=5", workdir, f"--config.data.store={train}")
    scored = run("evaluate", workdir, f"--config.data.heldout_store={test}")
    measured = json.loads((folder / "kn5" / "evaluation.json").read_text())
    manifest = json.loads((train / "manifest.json").read_text())
    return {
        "millions": millions,
        "words": words,
        "tokens": manifest["tokens"],
        "test": round(measured["heldout/lm_perplexity"], 1),
        "prepare": prepared,
        "train": counted,
        "evaluate": scored,
        "model_gb": (folder / "kn5" / "ngram.safetensors").stat().st_size / 1e9,
    }


def first_words(source: Path, target: Path, limit: int) -> int:
    """Copy lines until there are so many words; returns how many there are."""
    count = 0
    with source.open(encoding="utf-8") as file, target.open("w", encoding="utf-8") as copy:
        for line in file:
            copy.write(line)
            count += len(line.split())
            if count >= limit:
                break
    return count


def run(*arguments: str) -> dict:
    """Run a command of Firth; seconds of the clock and the processors, and the most memory."""
    began = time.time()
    process = subprocess.Popen(command(*arguments))
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"firth {' '.join(arguments)} failed")
    return {
        "seconds": round(time.time() - began, 1),
        "processor": round(usage.ru_utime + usage.ru_stime, 1),
        "gb": round(usage.ru_maxrss / 2**20, 2),
    }


def table(results: list[dict]) -> list[str]:
    """Markdown: a line for each size."""
    lines = [
        "| words | prepare, s | count and smooth, s (processor) | memory, GB | model, GB | test |",
        "|---|---|---|---|---|---|",
    ]
    for entry in sorted(results, key=lambda entry: entry["words"]):
        train = entry["train"]
        lines.append(
            f"| {entry['words'] / 1e6:.1f} M | {entry['prepare']['seconds']:.0f} | "
            f"{train['seconds']:.1f} ({train['processor']:.1f}) | {train['gb']:.2f} | "
            f"{entry['model_gb']:.2f} | {entry['test']:.1f} |"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
