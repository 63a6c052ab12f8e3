"""The lists of mutations that tests/mutate.py tries, and whether they fit the sources."""

import ast
import dataclasses
import functools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests" / "mutations"
ROOMS = (
    *("data", "objectives", "models", "layers", "training", "inference", "weights", "planning"),
    *("recipes", "display"),
)


class ListError(Exception):
    """The list does not fit the sources or the tests."""


@dataclasses.dataclass(frozen=True)
class Mutation:
    """`old`, which occurs once in `file`, made `new`; `tests` are pytest's node ids."""

    room: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    def __str__(self):
        return f"{self.file}: {self.old.strip()} -> {self.new.strip()}"

    def applied(self, text: str) -> str:
        """The text of the file with the mutation in it; ListError where it does not fit."""
        found = text.count(self.old)
        if found != 1:
            raise ListError(f"{self}: the old text occurs {found} times in the file, expected once")
        if self.old == self.new or "\n" in self.old + self.new:
            raise ListError(f"{self}: expected one line, and another one")
        return text.replace(self.old, self.new)


def read_lists(folder: Path = LISTS) -> list[Mutation]:
    """All mutations, by room."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        room = path.stem.partition("-")[0]
        if room not in ROOMS:
            raise ListError(f"{path}: {room!r} is no room; expected one of {', '.join(ROOMS)}")
        for entry in tomllib.loads(path.read_text())["mutation"]:
            try:
                found.append(Mutation(room, **entry | {"tests": tuple(entry["tests"])}))
            except (TypeError, KeyError) as error:
                raise ListError(f"{path}: {entry}: {error}") from None
    return sorted(found, key=lambda one: ROOMS.index(one.room))


def check(mutation: Mutation, root: Path = ROOT) -> None:
    """Raise ListError where a mutation does not fit its file, or names a test that is not there."""
    path = root / mutation.file
    if not path.is_file():
        raise ListError(f"{mutation}: there is no such file")
    text = mutation.applied(path.read_text())
    if path.suffix == ".py":
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ListError(f"{mutation}: does not compile: {error}") from None
    if not mutation.tests:
        raise ListError(f"{mutation}: names no test")
    for node in mutation.tests:
        name, *parts = node.partition("[")[0].split("::")
        if not (root / name).is_file():
            raise ListError(f"{mutation}: there is no {name}")
        if parts and parts[-1] not in _functions(root / name):
            raise ListError(f"{mutation}: {name} has no test {parts[-1]}")


@functools.cache
def _functions(path: Path) -> set[str]:
    return set(re.findall(r"^ *def (\w+)\(", path.read_text(), re.MULTILINE))
