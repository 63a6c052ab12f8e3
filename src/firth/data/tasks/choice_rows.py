"""Questions with choices, one row after another, for predictions."""

from firth.data.tasks.choices import choices_of, label_of, texts_of
from firth.data.tasks.columns import ANSWERS, choice_columns, choice_texts, label_column
from firth.data.tasks.rows import Row, Rows
from firth.data.tasks.tables import listed, present
from firth.errors import FirthError


class ChoiceRows(Rows):
    """The questions of a file; a `Rows` whose texts are (context, the text beside it of each).

    Attributes, beside those of `Rows`: texts, the columns of the context and the question, or of
    one alone; choices, the column of lists of choices or a column for each; size, how many choices
    each question has, by the first.
    """

    def __init__(self, path, texts=(), choices=(), **options):
        """Read the first row; arguments as for `Rows`, and the columns of choices, () to find them.

        Raises FirthError as `Rows` does, and for a first question without choices.
        """
        self.choices, self.size = tuple(choices), 0
        super().__init__(path, texts, **options)

    def _read_first(self, at, fields):
        if self.format == "txt":
            raise FirthError(
                f"{self.name}: the model chooses, and plain text has no columns of choices; "
                "expected .csv, .tsv or .jsonl, or --format"
            )
        self.choices = self.choices or choice_columns(self.columns)
        if not self.choices:
            raise FirthError(
                f"{at}: no columns are known to hold choices; there are: {listed(self.columns)}; "
                "choose by --choices=COLUMN (a list, in JSONL) or A,B,C (a column for each)"
            )
        present(at, self.choices, (), self.columns)
        self.size = len(choices_of(at, fields, self.choices))

    def _text_columns(self, at, option):
        others = [name for name in self.columns if name not in self.choices]
        return choice_texts(others, at, option)

    def label(self, name=None, option="--label"):
        """As in `Rows`; a label may also be called answer."""
        if name is None:
            return label_column(self.columns, f"{self.name}:1", option, ANSWERS)
        return super().label(name, option)

    def _row(self, at, fields, texts):
        present(at, self.choices, (), fields)
        return Row(at, fields, texts_of(at, fields, self.texts, self.choices, self.size))

    def chosen(self, row: Row, number: int) -> str:
        """The choice of that number."""
        return choices_of(row.at, row.fields, self.choices)[number]

    def number(self, row: Row, column: str) -> int:
        """The number of the right choice; FirthError for a label that is none."""
        return label_of(row.at, column, row.fields.get(column), self.size)
