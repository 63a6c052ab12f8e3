"""Words with their tags as text: columns as of CoNLL, or a JSON object a sentence."""

import json
from collections.abc import Sequence

from firth.data.tagging.schemes import marks_entities, spans
from firth.data.tasks.task import shown
from firth.errors import FirthError

FORMATS = ("tsv", "jsonl")


def output_format(path: str) -> str:
    """The format of an output by its ending; "tsv" for standard output.

    Raises FirthError for another ending.
    """
    kind = "jsonl" if path.endswith(".jsonl") else "tsv"
    if path != "-" and not path.endswith((".jsonl", ".tsv", ".conll", ".bio", ".txt")):
        raise FirthError(
            f"--output {path}: expected a name that ends in .tsv, .conll, .bio or .txt (a word and "
            "its tag a line, a tab between), or in .jsonl (an object a sentence)"
        )
    return kind


def written(
    kind: str, words: list[list[str]], tags: list[list[str]], labels: Sequence[str]
) -> bytes:
    """Sentences with tags as bytes of a format.

    tsv: a word, a tab and its tag a line, an empty line after each sentence. jsonl: {"words",
    "tags"}, and "entities" where the labels mark such: {"begin", "end", "type", "text"}, of words
    begin to end - 1.
    """
    if kind == "tsv":
        rows = (
            "".join(f"{word}\t{tag}\n" for word, tag in zip(*pair, strict=True)) + "\n"
            for pair in zip(words, tags, strict=True)
        )
    else:
        entities = marks_entities(labels)
        rows = (_object(*pair, entities) for pair in zip(words, tags, strict=True))
    return "".join(rows).encode("utf-8", "surrogatepass")


def _object(words: list[str], tags: list[str], entities: bool) -> str:
    found = {"words": words, "tags": tags}
    if entities:
        found["entities"] = [
            {"begin": begin, "end": end, "type": kind, "text": " ".join(words[begin:end])}
            for begin, end, kind in spans(tags)
        ]
    return json.dumps(found, ensure_ascii=False) + "\n"


def report(found: dict) -> str:
    """Lines to read of `tagger.measure`."""
    unknown = found["unknown_tags"]
    lines = [f"{found['sentences']:,} sentences, {found['words']:,} words"]
    if unknown:
        lines.append(
            f"{unknown:,} words have a tag that the model does not know: they count wrong "
            f"({shown(list(found['unknown']))})"
        )
    lines += ["", *(f"{name:<20} {value:.4f}" for name, value in found["metrics"].items())]
    if found["by_type"]:
        width = max(map(len, (*found["by_type"], "type")))
        lines += ["", f"{'type':<{width}}  precision  recall      f1  entities"]
        for kind, row in found["by_type"].items():
            values = f"{row['precision']:9.4f}  {row['recall']:6.4f}  {row['f1']:6.4f}"
            lines.append(f"{kind:<{width}}  {values}  {row['entities']:8,}")
    return "\n".join(lines)
