"""Which columns of a table hold the text, or the two texts of a pair, and which the label.

Case, spaces and punctuation of a name do not count: "Sentence 1" is "sentence1". A column named
`text`, and one named `label`, is taken whatever else there is. Other names are taken where one
choice alone is possible; where several are, the user chooses.
"""

import re
from collections.abc import Sequence

from firth.data.tasks.tables import listed
from firth.errors import FirthError

PAIRS = (
    ("text", "textpair"),
    ("text1", "text2"),
    ("texta", "textb"),
    ("sentence1", "sentence2"),
    ("sentencea", "sentenceb"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "answer"),
    ("question", "context"),
    ("question", "passage"),
    ("query", "document"),
    ("query", "passage"),
    ("1string", "2string"),
)
TEXTS = (
    *("text", "sentence", "review", "comment", "tweet", "post", "message", "utterance", "content"),
    *("body", "document", "passage", "paragraph", "abstract", "snippet", "phrase", "question"),
    *("query", "title", "headline"),
)
LABELS = (
    *("label", "labels", "goldlabel", "class", "category", "target", "score", "stars", "rating"),
    *("sentiment", "emotion", "intent", "topic", "similarity", "isduplicate", "quality"),
)
CONTEXTS = (
    *("context", "passage", "article", "paragraph", "story", "prompt", "premise", "text", "sent1"),
    "sentence",
)
QUESTIONS = ("question", "query", "sent2")
CHOICE_LISTS = ("choices", "options", "endings")
ANSWERS = ("answer", "answerkey", "gold", "correct")  # the label of a question with choices
NUMBERS = ("id", "idx", "index", "guid", "uid", "key", "line", "row", "")  # what names a row


def text_columns(header: Sequence[str], at: str, option: str = "--text") -> tuple[str, ...]:
    """The column of the text, or the two columns of a pair, as the header spells them.

    Where no name is known, the only column beside labels and the numbers of rows is the text.

    Args:
      header: the names of all columns.
      at: the file (and line), for errors.
      option: how the user names the columns, for errors: "--text" or "data.text".

    Raises FirthError, beginning with `at`, where no column or several could be the text.
    """
    names = _normalised(header)
    pairs = [pair for pair in PAIRS if names.keys() >= set(pair)]
    paired = {name for pair in pairs for name in pair}
    choices = pairs + [(name,) for name in TEXTS if name in names.keys() - paired]
    choices = [choice for choice in choices if choice[0] == "text"] or choices
    if not choices:
        others = [(name,) for name in names if name not in (*LABELS, *NUMBERS)]
        choices = others if len(others) < len(names) else []  # else perhaps there is no header
    chosen = [tuple(names[name] for name in choice) for choice in choices]
    if len(chosen) == 1:
        return chosen[0]
    found = "no column is known to hold texts"
    if chosen:
        found = f"the text may be in {' or '.join(','.join(choice) for choice in chosen)}"
    raise FirthError(
        f"{at}: {found}; there are: {listed(header)}; choose by {option}=COLUMN, or "
        "COLUMN1,COLUMN2 for pairs"
    )


def choice_columns(header: Sequence[str]) -> tuple[str, ...]:
    """The column of lists of choices, or those of one choice each; () where there are none.

    A list is named choices, options or endings. Columns of one choice each have such a name in the
    singular, with a number from 0 or a letter from A: ending0, ending1; option_a, option_b.
    """
    names = _normalised(header)
    for name in CHOICE_LISTS:
        for firsts in ("0123456789", "abcdefghij"):
            places = [f"{name.removesuffix('s')}{first}" for first in firsts]
            found = [names[place] for place in places if place in names]
            if len(found) > 1 and [names.get(place) for place in places[: len(found)]] == found:
                return tuple(found)
        if name in names:
            return (names[name],)
    return ()


def choice_texts(header: Sequence[str], at: str, option: str = "--text") -> tuple[str, ...]:
    """The columns of the context and of the question, or of one alone, beside choices.

    Raises FirthError, beginning with `at`, where no column or several could be one of them.
    """
    names = _normalised(header)
    chosen = []
    for known in (CONTEXTS, QUESTIONS):
        found = [names[name] for name in known if name in names]
        if len(found) > 1:
            raise FirthError(
                f"{at}: the text may be in {' or '.join(found)}; choose by {option}=CONTEXT, or "
                "CONTEXT,QUESTION"
            )
        chosen += found
    if not chosen:
        raise FirthError(
            f"{at}: no column is known to hold a context or a question; there are: "
            f"{listed(header)}; choose by {option}=CONTEXT, or CONTEXT,QUESTION"
        )
    return tuple(chosen)


def label_column(
    header: Sequence[str], at: str, option: str = "--label", more: Sequence[str] = ()
) -> str:
    """The column of the label, as the header spells it.

    `more` are further names that it may have. Raises FirthError, beginning with `at`, where no
    column or several could be the label; `option` is how the user names it, "--label" or
    "data.label".
    """
    names = _normalised(header)
    known = [names[name] for name in (*LABELS, *more) if name in names]
    chosen = [names["label"]] if "label" in names else known
    if len(chosen) == 1:
        return chosen[0]
    found = "no column is known to hold labels"
    if chosen:
        found = f"the label may be in {' or '.join(chosen)}"
    raise FirthError(f"{at}: {found}; there are: {listed(header)}; choose by {option}=COLUMN")


def _normalised(header: Sequence[str]) -> dict[str, str]:
    """{name without case, spaces and punctuation: name}, in the header's order."""
    names = {}
    for name in header:
        names.setdefault(re.sub(r"[\W_]", "", name.lower()), name)
    return names
