"""Text for word vectors from the articles of the Wikipedia sample: words in lower case.

    python experiments/word_vectors/text.py --data ../shared/data --output words.txt

A paragraph a line, and of it the runs of letters a-z and of digits, as in text8 but for digits.
"""

import argparse
import json
import lzma
import re
from pathlib import Path

WORD = re.compile(r"[a-z]+|[0-9]+")
LEAST = 5  # words of a paragraph


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="../shared/data", help="with wikipedia_en_sample/")
    parser.add_argument("--output", required=True)
    parser.add_argument("--words", type=int, default=0, help="stop after so many (0: all)")
    args = parser.parse_args()
    source = Path(args.data) / "wikipedia_en_sample" / "articles.jsonl.xz"
    count = 0
    with lzma.open(source, "rt") as articles, open(args.output, "w") as output:
        for article in articles:
            for paragraph in json.loads(article)["text"].split("\n"):
                words = WORD.findall(paragraph.lower())
                if len(words) >= LEAST:
                    output.write(" ".join(words) + "\n")
                    count += len(words)
            if args.words and count >= args.words:
                break
    print(f"{args.output}: {count:,} words")


if __name__ == "__main__":
    main()
