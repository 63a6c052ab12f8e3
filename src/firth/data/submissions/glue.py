"""The archive that GLUE's server takes: a zip with a file for each of its eleven test sets.

A file has the header `index<TAB>prediction` and a row for each example, numbered from 0 in the
order of the test set (gluebenchmark.com/faq). The server wants all files, of a task without a model
those of a constant answer.
"""

import collections
import dataclasses
import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from firth.data.submissions.predictions import HEADER, as_text
from firth.data.tasks.task import GLUE, Task
from firth.errors import FirthError
from firth.storage.local import write_bytes


class Entry(NamedTuple):
    """A file of the archive: the task and split that it is of, its rows, whose model answers."""

    task: str
    split: str
    rows: int
    model: str

    @property
    def answers(self) -> Task:
        """The task whose labels it has."""
        return GLUE[self.task]


# {name: entry}, with the sizes of the test sets as GLUE distributes them.
FILES: dict[str, Entry] = {
    "CoLA.tsv": Entry("cola", "test", 1063, "cola"),
    "SST-2.tsv": Entry("sst2", "test", 1821, "sst2"),
    "MRPC.tsv": Entry("mrpc", "test", 1725, "mrpc"),
    "STS-B.tsv": Entry("stsb", "test", 1379, "stsb"),
    "QQP.tsv": Entry("qqp", "test", 390_965, "qqp"),
    "MNLI-m.tsv": Entry("mnli", "test_matched", 9796, "mnli"),
    "MNLI-mm.tsv": Entry("mnli", "test_mismatched", 9847, "mnli"),
    "QNLI.tsv": Entry("qnli", "test", 5463, "qnli"),
    "RTE.tsv": Entry("rte", "test", 3000, "rte"),
    "WNLI.tsv": Entry("wnli", "test", 146, "wnli"),
    "AX.tsv": Entry("ax", "test", 1104, "mnli"),
}
MODELS = tuple(dict.fromkeys(entry.model for entry in FILES.values()))
EPOCH = (1980, 1, 1, 0, 0, 0)  # the date of every file, so that equal answers are equal bytes


@dataclasses.dataclass(frozen=True)
class Counted:
    """What a file of an archive holds: {label: times}, or the least and the greatest score."""

    name: str
    rows: int
    labels: Mapping[str, int]
    range: tuple[float, float] | None = None

    def __str__(self):
        if self.range:
            return "{:.4f} to {:.4f}".format(*self.range)
        return ", ".join(f"{label} {count:,}" for label, count in self.labels.items())


def constant(name: str) -> str:
    """The text of a file with the same answer everywhere: the first label, or the middle score."""
    entry = FILES[name]
    task = entry.answers
    answer = task.labels[0] if task.labels else f"{sum(task.limits) / 2:.4f}"
    return as_text([answer] * entry.rows)


def write_archive(path: Path, texts: Mapping[str, str]) -> list[Counted]:
    """Write the archive of {name: text} and check it; the write is atomic.

    The same texts give the same bytes. Returns what the files hold. Raises FirthError as `check`
    does, and writes nothing then.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in [name for name in FILES if name in texts]:
            member = zipfile.ZipInfo(name, EPOCH)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(member, texts[name])
    packed.seek(0)
    found = _check(packed, path)
    write_bytes(path, packed.getvalue())
    return found


def check(path: str | Path) -> list[Counted]:
    """What the files of an archive hold, if the server can take it.

    Raises FirthError for what is no zip, and one that lists all else that is wrong: a file that is
    missing, unknown or there twice; and of each file the first line with another header, number or
    order of rows, label or score than the test set has.
    """
    return _check(path, path)


def _check(file, path) -> list[Counted]:
    wrong, found = [], []
    try:
        with zipfile.ZipFile(file) as archive:
            there = collections.Counter(archive.namelist())
            wrong += [f"{name!r} is no file of a submission" for name in there if name not in FILES]
            wrong += [f"{name} is there {n} times" for name, n in there.items() if n > 1]
            for name in FILES:
                if name not in there:
                    wrong.append(f"{name} is missing")
                    continue
                try:
                    found.append(_count(name, archive.read(name)))
                except FirthError as error:
                    wrong.append(str(error))
    except (
        OSError,
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        zlib.error,
    ) as error:
        said = getattr(error, "strerror", None) or error
        raise FirthError(f"{path} is no zip that can be read: {said}") from None
    if wrong:
        raise FirthError(
            f"{path} is no submission: {'; '.join(wrong)} (expected at the top of the zip: "
            f"{', '.join(FILES)})"
        )
    return found


def _count(name: str, data: bytes) -> Counted:
    """What one file holds; FirthError, beginning with its name, for the first wrong line."""
    entry, labels, scores = FILES[name], collections.Counter(), []
    task = entry.answers
    try:
        lines = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise FirthError(f"{name} is not UTF-8") from None
    if lines[0] != HEADER:
        raise FirthError(f"{name}:1: the header is {lines[0]!r:.60}, expected {HEADER!r}")
    for index, line in enumerate(lines[1:]):
        at, cells = f"{name}:{index + 2}", line.split("\t")
        if len(cells) != 2:
            raise FirthError(f"{at}: {len(cells)} columns, expected index and prediction")
        if cells[0] != str(index):
            raise FirthError(f"{at}: index {cells[0]!r:.20}, expected {index}: rows in test order")
        if task.labels:
            if cells[1] not in task.labels:
                raise FirthError(f"{at}: {cells[1]!r:.40} is not one of {', '.join(task.labels)}")
            labels[cells[1]] += 1
        else:
            scores.append(_score(cells[1], at, task.limits))
    if len(lines) - 1 != entry.rows:
        raise FirthError(f"{name} has {len(lines) - 1:,} rows, expected {entry.rows:,}")
    counts = {label: labels[label] for label in task.labels}
    return Counted(name, entry.rows, counts, (min(scores), max(scores)) if scores else None)


def _score(text: str, at: str, limits: tuple[float, float]) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not limits[0] <= score <= limits[1]:
        raise FirthError(f"{at}: {text!r:.40} is not a number from {limits[0]:g} to {limits[1]:g}")
    return score
