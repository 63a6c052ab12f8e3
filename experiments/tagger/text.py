"""Sentences of the Wikipedia sample to pretrain on: with case, tokens divided by spaces.

    python experiments/tagger/text.py --data ../shared/data --output wiki.txt --test wiki-test.txt

Words and single marks are tokens, as in CoNLL-2003, but for "n't" and the like. A sentence has 3 to
60 tokens. Every hundredth article is test text.
"""

import argparse
import json
import lzma
import re
from pathlib import Path

from firth.data.corpus.sentences import split_sentences

TOKEN = re.compile(r"\w+(?:[-.&]\w+)*|[^\w\s]")
SHORTEST, LONGEST, TEST = 3, 60, 100


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="../shared/data", help="with wikipedia_en_sample/")
    parser.add_argument("--output", required=True)
    parser.add_argument("--test", required=True)
    args = parser.parse_args()
    source, counts = Path(args.data) / "wikipedia_en_sample" / "articles.jsonl.xz", [0, 0]
    with (
        lzma.open(source, "rt") as articles,
        open(args.output, "w") as train,
        open(args.test, "w") as test,
    ):
        for number, article in enumerate(articles):
            held_out = number % TEST == 0
            for paragraph in json.loads(article)["text"].split("\n"):
                for sentence in split_sentences(paragraph):
                    tokens = TOKEN.findall(sentence)
                    if SHORTEST <= len(tokens) <= LONGEST:
                        (test if held_out else train).write(" ".join(tokens) + "\n")
                        counts[held_out] += len(tokens)
    print(f"{args.output}: {counts[0]:,} tokens; {args.test}: {counts[1]:,}")


if __name__ == "__main__":
    main()
