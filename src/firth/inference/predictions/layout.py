"""How rows and predictions are written: CSV, TSV or JSONL."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.data.labels.multilabel import SEPARATOR, written
from firth.data.tasks.rows import Row, Rows
from firth.errors import FirthError

FORMATS = ("csv", "tsv", "jsonl")
DIGITS = 6  # of probabilities and scores, after the point


def output_format(path: str, rows: Rows) -> str:
    """The format of an output by its extension; for "-" that of the input, or JSONL for text.

    Raises FirthError for another extension.
    """
    if path == "-":
        return rows.format if rows.format in FORMATS else "jsonl"
    kind = Path(path).suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise FirthError(f"--output {path}: expected a .csv, .tsv or .jsonl file, or - for stdout")
    return kind


class Layout:
    """How predictions are written: all columns of the input, then those of the prediction.

    In tables these are `label` and `p_LABEL`, a probability for each label; in JSONL `label` and
    `probabilities`, an object; for a regression `score`. Of a question, `choice` after `label` is
    the text of the choice. A name that the input has already gets
    `predicted_` before it. With a threshold, `labels` in place of `label` has all labels whose
    probability is at least that: a list, in tables with | between.
    """

    def __init__(
        self, format: str, rows: Rows, labels: Sequence[str], threshold: float | None = None
    ):
        """`format` is one of FORMATS; `labels` are the model's, () for a regression.

        `threshold` is that of a model that gives a text several labels, else None.

        Raises FirthError if the input has the names with `predicted_` too, for a name that fits no
        TSV, and for a label with | in it in a table of several.
        """
        self.format, self.labels, self.columns = format, tuple(labels), rows.columns
        self._rows, self.threshold = rows, threshold
        several = threshold is not None
        if several and format != "jsonl" and (odd := [x for x in labels if SEPARATOR in x]):
            raise FirthError(
                f"the label {odd[0]!r} holds {SEPARATOR!r}, which divides labels in a table; write "
                ".jsonl"
            )
        new = ["labels" if several else "label"] + ["choice"] * bool(rows.choices)
        new = new if labels else []
        if format != "jsonl" and labels:
            new += [f"p_{label}" for label in labels]
        else:
            new += ["probabilities" if labels else "score"]
        self.new = [f"predicted_{name}" if name in rows.columns else name for name in new]
        if taken := set(self.new) & set(rows.columns):
            raise FirthError(f"{rows.name} has a column {min(taken)!r} already; rename it")
        self._check_cells(rows.name, (*self.columns, *self.new))

    def check(self, row: Row) -> None:
        """Raise FirthError for a row that cannot be written."""
        if self.format == "jsonl":
            if taken := set(self.new) & row.fields.keys():
                raise FirthError(f"{row.at}: has a field {min(taken)!r}, unlike the first row")
            return
        if more := row.fields.keys() - set(self.columns):
            raise FirthError(
                f"{row.at}: has a field {min(more)!r}, unlike the first row; write .jsonl"
            )
        self._check_cells(row.at, self._cells(row))

    def _check_cells(self, at: str, cells: Sequence[str]):
        # Firth reads and writes TSV without quotes.
        if self.format == "tsv" and any(c in cell for cell in cells for c in "\t\r\n"):
            raise FirthError(f"{at}: a tab or an end of line fits no TSV; write .csv or .jsonl")

    def _cells(self, row: Row) -> list[str]:
        return [_cell(row.fields.get(name)) for name in self.columns]

    def head(self) -> bytes:
        """What comes before the first row."""
        return b"" if self.format == "jsonl" else self._table([[*self.columns, *self.new]])

    def text(self, rows: Sequence[Row], outputs_NC: np.ndarray) -> bytes:
        """The rows with the outputs of a `Classifier`; FirthError as `check`."""
        records = []
        for row, outputs_C in zip(rows, outputs_NC, strict=True):
            self.check(row)
            label = self._said(row, outputs_C)
            if self.format != "jsonl":
                values = [f"{value:.{DIGITS}f}" for value in outputs_C]
                records.append([*self._cells(row), *label, *values])
                continue
            values = [round(float(value), DIGITS) for value in outputs_C]
            if self.labels:
                values = [dict(zip(self.labels, values, strict=True))]
            record = row.fields | dict(zip(self.new, [*label, *values], strict=True))
            records.append(json.dumps(record, ensure_ascii=False))
        if self.format != "jsonl":
            return self._table(records)
        return _encoded("".join(f"{record}\n" for record in records))

    def _said(self, row: Row, outputs_C: np.ndarray) -> list:
        """The label, with the choice of a question, or the labels; nothing of a score."""
        if not self.labels:
            return []
        if self.threshold is not None:
            marked = outputs_C >= self.threshold
            if self.format == "jsonl":
                return [[self.labels[i] for i in np.flatnonzero(marked)]]
            return [written(self.labels, marked)]
        best = outputs_C.argmax()
        choice = [self._rows.chosen(row, best)] if self._rows.choices else []
        return [self.labels[best], *choice]

    def _table(self, table: list[list[str]]) -> bytes:
        if self.format == "tsv":
            return _encoded("".join("\t".join(record) + "\n" for record in table))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(table)
        return _encoded(text.getvalue())


def _encoded(text: str) -> bytes:
    """UTF-8; half a surrogate pair, which JSON spells \\ud800, is spelt so again."""
    return text.encode(errors="backslashreplace")


def _cell(value) -> str:
    """A value of JSON in a table."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
