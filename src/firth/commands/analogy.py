"""`firth analogy`: which word is to C as B is to A; or the accuracy on a file of such questions.

firth analogy --model runs/sg man king woman
firth analogy --model runs/sg --questions questions-words.txt
"""

import json

from firth.commands.arguments import Parser, add_word_model, positive
from firth.errors import FirthError
from firth.inference.word_vectors.analogies import read_questions, score, solve
from firth.inference.word_vectors.model import WordModel


def main(argv: list[str]) -> int:
    """`firth analogy`."""
    parser = Parser(
        prog="firth analogy",
        description="Answer: A is to B as C is to which word? The nearest to the vector B - A + C "
        "that is none of the three.",
    )
    add = parser.add_argument
    add("words", nargs="*", metavar="WORD", help="the three words A B C")
    add_word_model(parser)
    add("--top", type=positive, default=5, help="how many answers (5)")
    add(
        "--questions",
        metavar="FILE",
        help="score a file instead: four words a line, lines `: name` begin sections",
    )
    add(
        "--most-frequent",
        type=positive,
        metavar="N",
        help="with --questions: know the N most frequent words alone (all; word2vec's tool 30000)",
    )
    add("--json", action="store_true", help="print one JSON object an answer or section")
    args = parser.parse_intermixed_args(argv)

    if bool(args.questions) == bool(args.words):
        raise FirthError("give three words, or --questions FILE, and not both")
    if args.questions:
        sections = read_questions(args.questions)
        return _score(WordModel(args.model), sections, args)
    if args.most_frequent:
        raise FirthError("--most-frequent is for --questions FILE")
    if len(args.words) != 3:
        raise FirthError(f"{len(args.words)} words; expected three: A is to B as C is to ?")
    for word, similarity in solve(WordModel(args.model), tuple(args.words), args.top):
        entry = dict(word=word, similarity=similarity)
        print(json.dumps(entry, ensure_ascii=False) if args.json else f"{similarity:.3f}  {word}")
    return 0


def _score(model: WordModel, sections, args) -> int:
    found = score(model, sections, args.most_frequent or 0)
    if not found[-1].asked:
        raise FirthError(
            f"{args.questions}: each of the {found[-1].left_out:,} questions has a word without a "
            "vector"
        )
    width = max(len(section.name) for section in found)
    if not args.json:
        print(f"{'section':<{width}}  accuracy  right  asked  left out")
    for one in found:
        if args.json:
            print(json.dumps(one._asdict() | {"accuracy": one.accuracy if one.asked else None}))
        else:
            share = f"{100 * one.accuracy:.1f} %" if one.asked else "-"
            numbers = f"{one.right:>5}  {one.asked:>5}  {one.left_out:>8}"
            print(f"{one.name:<{width}}  {share:>8}  {numbers}")
    return 0
