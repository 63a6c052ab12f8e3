"""Files of predictions: the rows of the input, and what the model says of each.

While predictions are under way, OUTPUT.partial holds the rows that are done, and
OUTPUT.partial.json says how many they are and of what model, options and input. However a run ends,
the same command goes on from there, and ends with the same bytes.
"""

import dataclasses
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from firth.data.tasks.rows import Row, Rows
from firth.errors import FirthError
from firth.inference.predictions.classifier import TextClassifier, predict_rows
from firth.inference.predictions.layout import Layout
from firth.inference.predictions.reading import Reading
from firth.progress import Progress
from firth.storage.local import read_json, write_json

log = logging.getLogger("firth")


class Stream:
    """An output that gets rows as they come, such as standard output."""

    def __init__(self, file):
        self.file, self.rows, self.cut = file, 0, 0

    def remaining(self, rows: Rows) -> Iterator[Row]:
        """The rows that are still to do: all."""
        return iter(rows)

    def append(self, data: bytes, rows: Sequence[Row], cut: int) -> None:
        """Write data of these rows, of which `cut` have lost tokens."""
        try:
            self.file.write(data)
            self.file.flush()
        except BrokenPipeError:  # nobody reads any more
            raise
        except OSError as error:
            raise FirthError(f"the output cannot be written: {error.strerror or error}") from None
        self.rows, self.cut = self.rows + len(rows), self.cut + cut


class Partial:
    """A file that grows as OUTPUT.partial and gets its name when it is complete.

    Attributes: rows, how many are done; cut, how many of these have lost tokens.
    """

    def __init__(self, output: Path, identity: dict):
        """Begin, or go on where a run of the same `identity`, values of JSON, was interrupted.

        Raises FirthError when it is entered, if OUTPUT.partial is of another identity, if another
        process writes to it, and if it cannot be written.
        """
        self.output, self.data = output, output.with_name(f"{output.name}.partial")
        self.state = output.with_name(f"{output.name}.partial.json")
        self.identity = json.loads(json.dumps(identity))
        self.rows, self.cut, self._bytes = 0, 0, 0
        self._digest, self._done, self._grown = hashlib.sha256(), None, False

    def __enter__(self) -> "Partial":
        try:
            if self.data.exists():
                self._read_state()
            else:
                self._write_state()  # first, so that data without a state are somebody else's
            self._file = self.data.open("ab", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file.fileno()).st_size < self._bytes:  # after a loss of power
                self.rows = self.cut = self._bytes = 0
            self._file.truncate(self._bytes)  # a kill may leave more than the state says
        except BlockingIOError:
            raise FirthError(f"another process writes {self.data}; wait for it") from None
        except OSError as error:
            raise self._failed(error) from None
        return self

    def _read_state(self):
        whole = read_json(self.state) if self.state.exists() else {}
        if whole.get("rows") == 0:  # nothing is lost, whatever it was to become
            self._write_state()
            return
        there = whole.get("identity", {})
        other = [name for name, value in self.identity.items() if there.get(name) != value]
        if other:
            said = f"has {other[0]}={there[other[0]]!r}" if other[0] in there else "is another's"
            now = f", not {self.identity[other[0]]!r}" if other[0] in there else ""
            raise FirthError(
                f"{self.data} {said}{now}; give the same command to go on, or remove that file to "
                "begin again"
            )
        self.rows, self.cut, self._bytes = whole["rows"], whole["cut"], whole["bytes"]
        self._done = whole["digest"]

    def remaining(self, rows: Rows) -> Iterator[Row]:
        """The rows that are still to do; FirthError if those done are not of this input."""
        rows, done = iter(rows), 0
        while done < self.rows and (row := next(rows, None)):
            self._digest.update(_bytes_of(row))
            done += 1
        if self.rows and (done < self.rows or self._digest.hexdigest() != self._done):
            raise FirthError(
                f"{self.data} holds {self.rows:,} rows of another input; give the same one to go "
                "on, or remove that file to begin again"
            )
        return rows

    def append(self, data: bytes, rows: Sequence[Row], cut: int) -> None:
        """Write data of these rows, of which `cut` have lost tokens."""
        try:
            self._bytes += len(data)
            while data:
                data = data[self._file.write(data) :]
            self.rows, self.cut = self.rows + len(rows), self.cut + cut
            for row in rows:
                self._digest.update(_bytes_of(row))
            self._write_state()
            self._grown = True
        except OSError as error:
            raise self._failed(error) from None

    def finish(self) -> None:
        """Give the file its name."""
        try:
            os.replace(self.data, self.output)
            self.state.unlink()
        except OSError as error:
            raise self._failed(error) from None

    def __exit__(self, *error) -> None:
        self._file.close()
        if not self.rows:
            self.data.unlink(missing_ok=True)
            self.state.unlink(missing_ok=True)
        elif self._grown and self.data.exists():
            log.warning("%s holds %s rows; the same command goes on", self.data, f"{self.rows:,}")

    def _write_state(self):
        digest = self._digest.hexdigest()
        done = {"rows": self.rows, "bytes": self._bytes, "cut": self.cut, "digest": digest}
        write_json(self.state, {"identity": self.identity} | done)

    def _failed(self, error: OSError) -> FirthError:
        return FirthError(f"{self.output} cannot be written: {error.strerror or error}")


def _bytes_of(row: Row) -> bytes:
    return json.dumps(row.fields).encode() + b"\n"


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
    remaining, before, began = sink.remaining(rows), sink.rows, time.monotonic()
    for window, outputs_NC, cut in predict_rows(classifier, remaining, reading, batches):
        head = b"" if sink.rows else layout.head()
        sink.append(head + layout.text(window, outputs_NC), window, cut)
        if progress:
            rate = (sink.rows - before) / (time.monotonic() - began)
            progress.update(sink.rows, f"{rate:,.0f} texts/s")


def identity(
    classifier: TextClassifier, rows: Rows, layout: Layout, reading: Reading, **options
) -> dict:
    """What decides every byte of an output, besides the rows of the input."""
    found = {"model": classifier.digest(), "length": classifier.length}
    found |= {"text": (*rows.texts, *rows.choices)}
    found |= {"input": rows.format, "output": layout.format}
    return found | dataclasses.asdict(reading) | options
