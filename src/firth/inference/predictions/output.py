"""Files of predictions: the rows of the input, and what the model says of each.

They grow as `firth.storage.partial` says.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from firth.data.tasks.rows import Rows
from firth.inference.predictions.classifier import TextClassifier, predict_rows
from firth.inference.predictions.layout import Layout
from firth.inference.predictions.reading import Reading
from firth.progress import Progress
from firth.storage.partial import Partial, Stream


@contextlib.contextmanager
def opened(
    output: Path | None, identity: dict, total: int | None
) -> Iterator[tuple[Stream | Partial, Progress]]:
    """The output of a command and its bar, which is quiet where `total` rows are not known.

    None is standard output, with a quiet bar. Raises FirthError as `Partial`.
    """
    if output is None:
        yield Stream(sys.stdout.buffer), Progress(total, 0, "predict", quiet=True)
        return
    with Partial(output, identity) as sink:
        bar = Progress(total, sink.rows, "predict", quiet=total is None)
        try:
            yield sink, bar
        finally:
            bar.close()


def write_predictions(
    classifier: TextClassifier,
    rows: Rows,
    sink: Stream | Partial,
    layout: Layout,
    reading: Reading,
    *,
    batches: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the predictions of the rows that `sink` lacks.

    Memory holds a window of `batches` batches, as in `predict_rows`; an interrupted run may have to
    do one again. Raises FirthError for a malformed row and an output that cannot be written.
    """
    remaining = sink.remaining(rows, lambda row: row.fields)
    for window, outputs_NC, cut in predict_rows(classifier, remaining, reading, batches):
        head = b"" if sink.rows else layout.head()
        text = head + layout.text(window, outputs_NC)
        sink.append(text, [row.fields for row in window], cut)
        if progress:
            progress.done(sink.rows, "texts")


def identity(
    classifier: TextClassifier, rows: Rows, layout: Layout, reading: Reading, **options
) -> dict:
    """What decides every byte of an output, besides the rows of the input."""
    found = {"model": classifier.digest(), "length": classifier.length}
    found |= {"text": (*rows.texts, *rows.choices)}
    found |= {"input": rows.format, "output": layout.format}
    return found | dataclasses.asdict(reading) | options
