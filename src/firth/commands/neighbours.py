"""`firth neighbours`: the words whose vectors are nearest to a word's.

firth neighbours --model runs/sg vase broke --top 5
"""

import json

from firth.commands.arguments import Parser, add_word_model, positive
from firth.inference.word_vectors.model import WordModel


def main(argv: list[str]) -> int:
    """`firth neighbours`."""
    parser = Parser(
        prog="firth neighbours",
        description="List the words whose vectors are nearest to a word's, by the cosine of their "
        "angle.",
    )
    add = parser.add_argument
    add("words", nargs="+", metavar="WORD", help="whose neighbours to list")
    add_word_model(parser)
    add("--top", type=positive, default=10, help="how many (10)")
    add("--json", action="store_true", help="print one JSON object a neighbour")
    args = parser.parse_intermixed_args(argv)

    model = WordModel(args.model)
    rows = [model.find(word) for word in args.words]
    found = model.neighbours(model.vectors[rows], [[row] for row in rows], args.top)
    for query, hits in zip(args.words, found, strict=True):
        if len(args.words) > 1 and not args.json:
            print(f"== {query}")
        for word, similarity in hits:
            entry = dict(query=query, word=word, similarity=similarity)
            print(
                json.dumps(entry, ensure_ascii=False) if args.json else f"{similarity:.3f}  {word}"
            )
    return 0
