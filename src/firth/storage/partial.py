"""Outputs that grow row by row, and go on where an interrupted run left them.

While a command works, OUTPUT.partial holds the rows that are done, and OUTPUT.partial.json says how
many they are and of what model, options and input. However a run ends, the same command goes on
from there, and ends with the same bytes.
"""

import fcntl
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from firth.errors import FirthError
from firth.storage.local import read_json, write_json

Row = TypeVar("Row")
Written = TypeVar("Written")
log = logging.getLogger("firth")


def _itself(row):
    return row


class Stream:
    """An output that gets rows as they come, such as standard output; as `Partial` is used."""

    def __init__(self, file):
        self.file, self.rows, self.cut = file, 0, 0

    def remaining(self, rows: Iterable[Row], said: Callable = _itself) -> Iterator[Row]:
        """The rows that are still to do: all."""
        return iter(rows)

    def append(self, data: bytes, rows: Sequence, cut: int = 0) -> None:
        """Write data of these rows, of which `cut` have lost tokens."""
        try:
            self.file.write(data)
            self.file.flush()
        except BrokenPipeError:  # nobody reads any more
            raise
        except OSError as error:
            raise FirthError(f"the output cannot be written: {error.strerror or error}") from None
        self.rows, self.cut = self.rows + len(rows), self.cut + cut

    def finish(self) -> None:
        """Nothing is left to do."""


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

    def remaining(self, rows: Iterable[Row], said: Callable = _itself) -> Iterator[Row]:
        """The rows that are still to do; `said` makes values of JSON of a row.

        Raises FirthError if the rows that are done are not the first of these.
        """
        rows, done = iter(rows), 0
        for row in itertools.islice(rows, self.rows):
            self._digest.update(_line(said(row)))
            done += 1
        if self.rows and (done < self.rows or self._digest.hexdigest() != self._done):
            raise FirthError(
                f"{self.data} holds {self.rows:,} rows of another input; give the same one to go "
                "on, or remove that file to begin again"
            )
        return rows

    def append(self, data: bytes, rows: Sequence, cut: int = 0) -> None:
        """Write data of these rows, values of JSON, of which `cut` have lost tokens."""
        try:
            self._bytes += len(data)
            while data:
                data = data[self._file.write(data) :]
            self.rows, self.cut = self.rows + len(rows), self.cut + cut
            for row in rows:
                self._digest.update(_line(row))
            self._write_state()
            self._grown = True
        except OSError as error:
            raise self._failed(error) from None

    def finish(self) -> Path:
        """Give the file its name, OUTPUT, and return that."""
        try:
            os.replace(self.data, self.output)
            self.state.unlink()
        except OSError as error:
            raise self._failed(error) from None
        return self.output

    def finish_by(self, write: Callable[[bytes], Written]) -> Written:
        """Let `write` write OUTPUT from the bytes of all rows; returns what it does."""
        try:
            written = write(self.data.read_bytes())
            self.data.unlink()
            self.state.unlink()
        except OSError as error:
            raise self._failed(error) from None
        return written

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


def _line(row) -> bytes:
    return json.dumps(row).encode() + b"\n"
