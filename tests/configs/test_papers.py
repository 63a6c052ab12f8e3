"""Every constant of every recipe against its paper: `tests/papers/*.toml`."""

import ast

import pytest
from helpers import papers

from firth import configs, recipe

SAID = {name: papers.read(name) for name in papers.names()}
CASES = [(name, arg) for name, said in SAID.items() for arg in said["cases"]]


def test_every_recipe_and_every_size_has_its_paper():
    assert recipe.shipped() == [f"{name}.py" for name in SAID]
    for name, said in SAID.items():
        assert said["recipe"] == f"{name}.py"
        for group in (group for kind in papers.KINDS for group in said.get(kind, ())):
            assert group.keys() & {"where", "why"}, f"{name}: {group}"


@pytest.mark.parametrize(("name", "arg"), CASES)
def test_a_recipe_is_as_its_paper_says(name, arg):
    """Each field is stated once, by the paper, as a departure or as Firth's own, with its value."""
    config = papers.load(papers.source(name)).get_config(arg or None)
    problems = papers.difference(SAID[name], config, SAID[name]["cases"][arg])
    assert not problems, f"{name}.py:{arg} against tests/papers/{name}.toml:\n" + "\n".join(
        problems
    )


@pytest.mark.parametrize("name", SAID)
def test_departures_are_those_that_the_docstring_names(name):
    said = [group["title"] for group in SAID[name].get("departure", ())]
    text = papers.load(papers.source(name)).__doc__
    _, found, listed = text.partition("\nDepartures from the paper")
    named = [line[2:].partition(":")[0] for line in listed.split("\n") if line.startswith("- ")]
    assert named == said and bool(found) == bool(said)


def test_the_page_of_departures_is_made_of_them():
    page = (papers.REPOSITORY / "docs" / "departures.md").read_text()
    assert page == papers.table(), "write it again: python tests/helpers/papers.py"


def constants(tree: ast.Module):
    """The constants of a recipe that make its config: no docstrings, no messages of errors."""
    skipped = {id(tree.body[0].value)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            skipped |= {id(inner) for inner in ast.walk(node)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            skipped.add(id(node.body[0].value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in skipped and node.value is not None:
            yield node


def changed(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    return value + 1 if isinstance(value, int) else 1.5 * value + 0.01 * (value == 0)


def sees(name: str, source: str) -> bool:
    """Whether some case of a recipe's file differs from this source, or the source fails."""
    try:
        get_config = papers.load(source).get_config
        return any(
            papers.difference(SAID[name], get_config(arg or None), tags)
            for arg, tags in SAID[name]["cases"].items()
        )
    except Exception:
        return True


def unseen(source: str, seen) -> list[str]:
    """The constants of a source that may change, one after the other, without `seen(source)`."""
    tree, found = ast.parse(source), []
    assert not seen(ast.unparse(tree))
    nodes = list(constants(tree))
    for node in nodes:
        value, node.value = node.value, changed(node.value)
        if not seen(ast.unparse(tree)):
            found.append(f"line {node.lineno}: {value!r}")
        node.value = value
    print(f"{len(nodes)} constants, {len(found)} unseen")
    return found


@pytest.mark.parametrize("name", SAID)
def test_no_constant_of_a_recipe_can_change_unseen(name):
    """One after the other; 39 that were changed at once had once gone unseen."""
    assert not unseen(papers.source(name), lambda source: sees(name, source))


def test_no_constant_that_recipes_have_in_common_can_change_unseen(monkeypatch):
    """A change in common.py shows in some recipe that imports it."""
    assert not unseen_in("common", monkeypatch)


@pytest.mark.slow
def test_no_constant_of_the_sizes_for_a_laptop_can_change_unseen(monkeypatch):
    """But for what they cost, which test_laptop.py counts again."""
    head, _, rest = papers.source("laptop").partition("COSTS = {")
    assert not unseen_in("laptop", monkeypatch, head + rest.partition("\n}\n")[2])


def unseen_in(name: str, monkeypatch, source: str = "") -> list[str]:
    """The constants of a module that recipes import which may change unseen by all of them."""
    sources = {name: papers.source(name) for name in SAID}
    order = list(SAID)  # the recipe that saw the last change comes first: it likely sees the next

    def seen(source):
        try:
            module = papers.load(source)
        except Exception:
            return True
        monkeypatch.setattr(configs, name, module, raising=False)
        for place, reader in enumerate(order):
            if sees(reader, sources[reader]):
                order.insert(0, order.pop(place))
                return True
        return False

    return unseen(source or papers.source(name), seen)
