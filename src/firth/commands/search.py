"""`firth search`: the texts whose vectors are nearest to a query's.

firth search --vectors vectors.npz --query "a broken vase" --texts sentences.txt
"""

import json
from pathlib import Path

from firth.commands.arguments import Parser, add_dtype, positive
from firth.errors import FirthError
from firth.inference.inputs import read_lines
from firth.inference.search import nearest, shown
from firth.inference.vector_files import read_vectors
from firth.inference.word_vectors.model import load_any


def main(argv: list[str]) -> int:
    """`firth search`."""
    parser = Parser(
        prog="firth search",
        description="Find the texts whose vectors are nearest to a query's, by the cosine of their "
        "angle.",
    )
    add = parser.add_argument
    add("--vectors", required=True, help="a .npz, .npy or .jsonl of `firth represent`, one layer")
    add("--query", required=True, nargs="+", metavar="TEXT", help="what to look for")
    add("--model", help="that made the vectors (as the .npz says)")
    add("--texts", help="the file of the texts, to show them (a .jsonl has them)")
    add("--top", type=positive, default=5, help="how many texts (5)")
    add("--layer", type=int, help="of the vectors (as the .npz says, else -1)")
    add("--pool", choices=("mean", "cls"), help="of the vectors (as the .npz says, else mean)")
    add("--json", action="store_true", help="print one JSON object a text")
    add_dtype(parser)
    args = parser.parse_args(argv)

    vectors, known = read_vectors(Path(args.vectors))
    texts = known.get("texts")
    if args.texts:
        texts = [text for _, text in read_lines(args.texts)]
        if len(texts) != len(vectors):
            raise FirthError(
                f"--texts {args.texts} has {len(texts):,} lines, but {args.vectors} "
                f"{len(vectors):,} vectors; give the file that they were made from"
            )
    if not (model := args.model or known.get("model")):
        raise FirthError(f"{args.vectors} does not say which model made it; give --model")
    encoder = load_any(model, dtype=args.dtype, heads=False)
    layer = known.get("layer", -1) if args.layer is None else args.layer
    pool = args.pool or known.get("pool", "mean")
    queries = encoder.encode(args.query, layer=layer, pool=pool)
    for number, hits in enumerate(nearest(vectors, queries, args.top)):
        if len(args.query) > 1 and not args.json:
            print(f"== {args.query[number]}")
        for hit in hits:
            text = shown(texts, hit.row)
            if args.json:
                entry = dict(query=args.query[number], row=hit.row, similarity=hit.similarity)
                print(json.dumps(entry | ({"text": text} if texts else {}), ensure_ascii=False))
            else:
                print(f"{hit.similarity:.3f}  {hit.row + 1:>6}  {text}".rstrip())
    return 0
