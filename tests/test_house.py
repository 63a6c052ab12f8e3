"""The shape of the house: which room may import which, how large files and folders are."""

import ast
import configparser
import io
import itertools
import subprocess
import sys
import tokenize
from importlib import metadata
from pathlib import Path

import pytest

import firth

SOURCE = Path(firth.__file__).parent
CONFIGS = SOURCE.parents[1] / "configs"
# From the top down: a module imports from its own room and from rooms in lines below its own.
ROOMS = (
    ("__main__",),
    ("cli",),
    ("commands",),
    ("train",),
    ("inference", "planning"),
    ("run",),
    ("weights",),
    ("objectives",),
    ("models",),
    ("layers", "data", "training"),
    ("tokenizers", "distributed", "display"),
    ("registry",),
    ("recipe",),
    ("storage", "configs"),
    ("progress", "errors"),
)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
FACE = "firth"  # the package itself: `firth.load`, which no module of it uses


def modules() -> dict[str, Path]:
    """{dotted name: file} of the package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def is_for_types(node) -> bool:
    """Whether this is `if TYPE_CHECKING:`, which nothing runs."""
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def run_nodes(tree):
    """The nodes of a tree that may run: functions too, since a late import is an import."""
    for node in ast.iter_child_nodes(tree):
        if not is_for_types(node):
            yield node
            yield from run_nodes(node)


def imports_of(name: str) -> set[str]:
    """The modules of the package that a module imports, wherever in it."""
    found = set()
    for node in run_nodes(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {x if x in MODULES else node.module for x in inner}
    return {x for x in found if x.split(".")[0] == "firth"} - {name}


IMPORTS = {name: imports_of(name) for name in MODULES}


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", [name for name in MODULES if name != FACE])
def test_no_import_runs_upward(name):
    for other in IMPORTS[name]:
        assert other != FACE, f"{name} imports the package's face"
        if room(other) != room(name):
            assert RANK[room(other)] > RANK[room(name)], f"{name} imports {other}"


def test_no_imports_run_in_a_circle():
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, " > ".join([*open_[open_.index(name) :], name])
        if name not in done:
            open_.append(name)
            for other in sorted(IMPORTS[name]):
                visit(other)
            done.add(open_.pop())

    for name in IMPORTS:
        visit(name)


def test_a_circle_or_an_upward_import_would_be_seen(monkeypatch):
    monkeypatch.setitem(IMPORTS, "firth.errors", {"firth.recipe"})
    with pytest.raises(AssertionError, match=r"firth\.errors imports firth\.recipe"):
        test_no_import_runs_upward("firth.errors")
    with pytest.raises(AssertionError, match=r"firth\.errors > .*firth\.errors"):
        test_no_imports_run_in_a_circle()


def lines_of_code(path: Path) -> int:
    """Lines with something on them that is neither a comment nor a docstring."""
    text = path.read_text()
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if token.type not in (tokenize.COMMENT, tokenize.ENDMARKER, *layout):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        value = getattr(node, "value", None) if isinstance(node, ast.Expr) else None
        if isinstance(getattr(value, "value", None), str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_sizes():
    files = [*MODULES.values(), *CONFIGS.glob("*.py"), *Path(__file__).parent.rglob("*.py")]
    long = {path.name: n for path in files if (n := len(path.read_text().splitlines())) > 400}
    assert not long
    assert lines_of_code(SOURCE / "train.py") <= 300
    assert all(lines_of_code(path) <= 250 for path in (SOURCE / "models").glob("*.py"))
    assert len(list(SOURCE.glob("*.py"))) <= 8
    folders = {path.parent for path in MODULES.values()} - {SOURCE / "commands"}
    assert {folder.name for folder in folders if len(list(folder.glob("*.py"))) > 14} == set()
    verbs = {path.stem for path in (SOURCE / "commands").glob("[!_]*.py")} - {"arguments"}
    from firth.cli import VERBS

    assert verbs == VERBS.keys()


def test_an_installed_firth_has_every_package():
    setup = configparser.ConfigParser()
    setup.read(SOURCE.parents[1] / "setup.cfg")
    folders = {path.parent.relative_to(SOURCE.parent) for path in SOURCE.rglob("__init__.py")}
    named = setup["options"]["packages"].split()
    assert sorted(named) == sorted({".".join(f.parts) for f in folders} | {"firth.configs"})


def test_no_two_test_files_share_a_name():
    # pytest imports test files by their last names: of two alike, a whole run refuses the second
    names = sorted(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [a for a, b in itertools.pairwise(names) if a == b] == []


def test_the_loop_names_no_model():
    from firth.models import FAMILIES
    from firth.objectives import OBJECTIVES

    text = (SOURCE / "train.py").read_text()
    assert not [name for name in (*FAMILIES, *OBJECTIVES) if f"firth.models.{name}" in text]
    assert "firth.objectives" not in text


def test_an_installed_copy_has_every_package():
    setup = configparser.ConfigParser()
    setup.read(SOURCE.parents[1] / "setup.cfg")
    packages = {
        name.rpartition(".")[0] for name, path in MODULES.items() if path.stem != "__init__"
    }
    assert set(setup["options"]["packages"].split()) == packages | {FACE, "firth.configs"}


def test_public_names():
    program = "import firth; print(*(name for name in vars(firth) if name[0] != '_'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["load"], done.stderr
    assert firth.__version__ == metadata.version("firth")
