"""What is said of a field is the comment that stands behind it in the source."""

import re

import pytest

from firth import recipe
from firth.display.annotations import arguments, comments_of, read_source
from firth.errors import FirthError
from firth.recipe import OWN_RUNS, SHIPPED

BASE = '''"""A base.

Not the first line.
"""

import ml_collections


def section(**fields):
    every = dict(
        rate=0.1,  # of the base
        depth=2,  # layers
    )
    return inner(**every | fields)


def inner(**fields):
    return dict(width=8, rate=0.5) | fields  # behind two


def get_config(arg=None):
    return ml_collections.ConfigDict(dict(model=section(), seed=0))
'''
OWN = '''"""Mine: a recipe of my own (Me 2026)."""

import base
from base import section

from firth.recipe import parse_arg

TABLE = {"steps": 5}  # of no field


def get_config(arg=None):
    arg = parse_arg(arg, size="tiny", length=32)
    c = base.get_config()
    # in front of a field: not its comment
    c.model = base.section(
        rate=0.2,  # "quoted" # and with a hash
    )
    c.other = section(depth=3)  # of a section
    if arg.length > 16:
        c.data = dict(text="# no comment", length=arg.length, deep=dict(a=1))  # of all three
    else:
        c.data = {"length": 1}
    c.data.update(
        extra=(
            1,
            2,  # inside a value
        ),  # the extra one
        plain=0,
    )
    c.model.depth = 4  # set alone
    return c
'''


@pytest.fixture
def own(tmp_path):
    (tmp_path / "base.py").write_text(BASE)
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def test_comments_behind_fields(own):
    assert comments_of(own) == {
        "model.rate": '"quoted" # and with a hash',
        "model.width": "behind two",
        "model.depth": "set alone",
        "other.rate": "of the base",
        "other.width": "behind two",
        "other.depth": "of a section",
        "data.text": "of all three",
        "data.length": "of all three",
        "data.deep.a": "of all three",
        "data.deep": "of all three",
        "data.extra": "the extra one",
    }


def test_the_head_and_the_arguments(own):
    assert read_source(own).title == "Mine: a recipe of my own (Me 2026)."
    assert arguments(own) == {"size": "tiny", "length": "32"}
    assert arguments(own.parent / "base.py") == {}


def test_what_is_not_python_is_refused(tmp_path):
    (tmp_path / "wrong.py").write_text("def get_config(:\n")
    with pytest.raises(FirthError, match=r"wrong\.py is not Python"):
        comments_of(tmp_path / "wrong.py")


@pytest.mark.parametrize("name", recipe.shipped())
def test_every_comment_stands_behind_its_field_in_the_source(name):
    """Checked with an expression instead of a parser: `field=...  # comment` on one line."""
    texts = [(SHIPPED / name).read_text(), (SHIPPED / "common.py").read_text()]
    others = {"quickstart.py": "modernbert.py", "ulmfit.py": "finetune.py"}  # which they build on
    texts += [(SHIPPED / others[name]).read_text()] if name in others else []
    found = comments_of(SHIPPED / name)
    assert len(found) > (7 if name.removesuffix(".py") in (*OWN_RUNS, "maxent") else 20)
    for field, comment in found.items():
        last = field.rpartition(".")[2]
        behind = rf"(\b{last}\b[^\n]*=|\)|else)[^\n]*# {re.escape(comment)}$"
        assert any(re.search(behind, text, re.MULTILINE) for text in texts), (field, comment)


def test_every_field_of_common_with_a_comment_has_it():
    text = (SHIPPED / "common.py").read_text()
    said = re.findall(r"^ +(\w+)=[^()\n]*,  # (.*)$", text, re.MULTILINE)
    found = comments_of(SHIPPED / "common.py", "run")
    for function in ("pretraining", "with_kernels", "split_data", "lora", "optimizer"):
        found |= comments_of(SHIPPED / "common.py", function, f"{function}.")
    pairs = {(name.rpartition(".")[2], comment) for name, comment in found.items()}
    assert len(said) > 30 and set(said) <= pairs
