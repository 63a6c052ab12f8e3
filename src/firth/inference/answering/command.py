"""What `firth predict` and `firth evaluate` do where the model answers questions."""

import json
from collections.abc import Iterator
from pathlib import Path

from firth.data.answering.decode import Answered, Predicted, from_line, ranked_json, to_line
from firth.data.answering.files import Questions, read_pairs, read_squad
from firth.data.answering.metrics import score_answers
from firth.errors import FirthError
from firth.inference.answering.answerer import Answerer
from firth.inference.predictions.output import opened

ROWS = ("jsonl", "csv", "tsv")  # formats of a question and its text a row


def check(args, parser) -> str | None:
    """The format of the input: one of ROWS, or None for SQuAD's JSON.

    Raises FirthError for an option that means nothing to a model that answers questions.
    """
    for name in ("long", "packed", "label", "threshold", "task", "choices"):
        if getattr(args, name, None) != parser.get_default(name):
            raise FirthError(f"--{name}: the model answers questions; leave it out")
    name = getattr(args, "input", None) or args.data
    plain = name.removesuffix(".gz").removesuffix(".xz")
    kind = args.format or ("" if name == "-" else Path(plain).suffix[1:])
    if kind in ("", "json"):
        return None
    if kind not in ROWS:
        raise FirthError(
            f"{name}: the model answers questions; expected SQuAD's JSON (.json), or a question "
            f"and its text a row ({', '.join(f'.{row}' for row in ROWS)})"
        )
    return kind


def predict(args, parser, output: Path | None) -> None:
    """Answer the questions of `args.input`; `output` is a checked place, None for standard output.

    A .json file is in the official layout, with its n-best and null odds beside it; .jsonl has an
    object a question.
    """
    kind = check(args, parser)
    if output and output.suffix not in (".json", ".jsonl"):
        raise FirthError(
            f"--output {output}: expected a .json file (SQuAD's predictions), a .jsonl file (an "
            "object a question), or - for stdout"
        )
    if kind:
        questions = read_pairs(args.input, args.text, kind=kind, errors=args.errors)
    elif args.text:
        raise FirthError("--text: SQuAD's JSON has no columns; leave it out")
    else:
        questions = read_squad(args.input, places=False, errors=args.errors)
    model = Answerer(args.model, args.dtype)
    threshold = model.threshold if args.null_threshold is None else args.null_threshold
    options, whole = _reading(args), bool(output) and output.suffix == ".json"
    chosen = dict(whole=whole, threshold=threshold, nbest=args.nbest, dtype=args.dtype)
    said = {"model": model.digest()} | options | chosen if output else {}
    with opened(output, said, len(questions)) as (sink, bar):
        sink.remaining(_said(questions))
        for part, found in model.in_parts(questions, sink.rows, **options):
            if whole:
                lines = [to_line(one) for one in found]
            else:
                lines = [_line(part, n, one, threshold, args.nbest) for n, one in enumerate(found)]
            sink.append("".join(lines).encode("utf-8", "surrogatepass"), [*_said(part)])
            bar.done(sink.rows, "questions")

        def write(lines: bytes) -> list[Path]:
            answered = [from_line(line) for line in lines.splitlines()]
            predicted = Predicted(questions.ids, answered, threshold)
            return predicted.write(output, ranked=args.nbest is not None)

        paths = sink.finish_by(write) if whole else [sink.finish()]
    if output:
        print(f"{', '.join(map(str, paths))}: {len(questions):,} questions")


def evaluate(args, parser, output: Path | None) -> None:
    """Measure answers against those of `args.data`; writes predictions to `output` if given."""
    if check(args, parser):
        raise FirthError(f"{args.data}: expected SQuAD's JSON (.json), which has the answers")
    if args.text:
        raise FirthError("--text: SQuAD's JSON has no columns; leave it out")
    if output and output.suffix != ".json":
        raise FirthError(f"--output {output}: expected a .json file, for SQuAD's predictions")
    questions = read_squad(args.data, places=False, errors=args.errors)
    if questions.answers is None:
        raise FirthError(f"{questions.source} has no answers to compare with")
    model = Answerer(args.model, args.dtype)
    threshold = model.threshold if args.null_threshold is None else args.null_threshold
    if threshold is None and not all(questions.answers):
        threshold = 0.0
    parts = model.in_parts(questions, **_reading(args))
    answered = [one for _, found in parts for one in found]
    predicted = Predicted(questions.ids, answered, threshold)
    options = {} if threshold is None else {"odds": predicted.odds(), "threshold": threshold}
    metrics = score_answers(questions, predicted.texts(None), **options)
    if output:
        predicted.write(output, ranked=args.nbest is not None)
    some = sum(map(bool, questions.answers))
    found = {"questions": len(questions), "answerable": some, "null_threshold": threshold}
    if args.json:
        print(json.dumps(found | {"metrics": metrics}))
        return
    said = "" if threshold is None else f", no answer where its odds are above {threshold:.4g}"
    print(f"{questions.source}: {len(questions):,} questions, {some:,} with an answer{said}\n")
    for name, value in metrics.items():
        print(f"{name:<22} {value:.4f}")


def _said(questions: Questions) -> Iterator[tuple[str, str, str]]:
    """What tells the questions from others: their names, words and texts."""
    contexts = (questions.contexts[n] for n in questions.context)
    return zip(questions.ids, questions.texts, contexts, strict=True)


def _reading(args) -> dict:
    return {
        "batch_size": args.batch_size,
        "length": args.max_length,
        "stride": args.stride,
        "best": args.nbest or 1,
    }


def _line(
    questions: Questions, number: int, one: Answered, threshold: float | None, nbest: int | None
) -> str:
    """A question's answer as a line of JSON; begin and end are characters of its text."""
    span = one.answer(threshold)
    found = {"id": questions.ids[number], "question": questions.texts[number]}
    found |= {"answer": span.text, "begin": span.begin, "end": span.end, "score": span.score}
    if threshold is not None:
        found["null_odds"] = one.null_odds
    if nbest is not None:
        found["nbest"] = ranked_json(one, threshold, nbest + 1)  # no answer is one more
    return json.dumps(found, ensure_ascii=False) + "\n"
