"""Ten million words to train on: the first documents of three sources, in the order of their files.

    python experiments/minimal_pairs/text.py --data ../shared/data --output runs/pairs/text.jsonl

A word is what spaces divide. Each source gives whole documents until it has its share; the last
document ends after the paragraph that reaches it. Nothing is drawn by chance. A line of the output
is a document: {"source", "text"}, a paragraph a line of the text. The counts are printed as JSON.
"""

import argparse
import json
import lzma
from pathlib import Path

SHARES = {  # file -> words
    "wikipedia_en_sample/articles.jsonl.xz": 4_000_000,
    "english_novels/novels.jsonl.xz": 3_000_000,
    "imdb/unsup.jsonl.xz": 3_000_000,
}
BREAK = "<br />"  # between the paragraphs of a review


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a document that have words."""
    return [part for part in text.replace(BREAK, "\n").split("\n") if part.strip()]


def select(path: Path, share: int):
    """(paragraphs, words) of documents in turn, until `share` words are reached."""
    total = 0
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            kept, words = [], 0
            for paragraph in paragraphs(json.loads(line)["text"]):
                if total + words >= share:
                    break
                kept.append(paragraph)
                words += len(paragraph.split())
            total += words
            if kept:
                yield kept, words
            if total >= share:
                return
    raise SystemExit(f"{path} has {total:,} words, expected at least {share:,}")


def write(data: Path, output: Path) -> dict:
    """Write the selection; {source: {"documents", "words", "characters"}}."""
    counts = {}
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f"{output.name}.part")  # a text that is there is whole
    with open(part, "w", encoding="utf-8") as file:
        for name, share in SHARES.items():
            source = name.partition("/")[0]
            count = counts[source] = {"documents": 0, "words": 0, "characters": 0}
            for kept, words in select(data / name, share):
                text = "\n".join(kept)
                file.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
                count["documents"] += 1
                count["words"] += words
                count["characters"] += len(text)
    part.replace(output)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    print(json.dumps(write(args.data, args.output)))


if __name__ == "__main__":
    main()
