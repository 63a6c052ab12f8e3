"""What the papers say of every recipe (`tests/papers/*.toml`), and where a recipe differs.

The sizes for a laptop (`laptop.toml`) are from sweeps instead, which replace what a paper says.
`python tests/helpers/papers.py` writes the table of departures, docs/departures.md.
"""

import dataclasses
import functools
import math
import tomllib
from pathlib import Path
from types import ModuleType

from firth.models.model import family
from firth.recipe import OWN_RUNS, flatten

REPOSITORY = Path(__file__).resolve().parents[2]
PAPERS = REPOSITORY / "tests" / "papers"
KINDS = ("paper", "departure", "firth")
WORDS = ("for", "where", "why", "title", "says", "here")  # of a group; the rest are fields

HEAD = """# Departures from the papers and their code

Every constant of every recipe is compared with its paper and the released code, which
`tests/papers/` records with section and table. What differs is here, and in the docstring of the
recipe. This page is made from those records: `python tests/helpers/papers.py`.
"""


def read(name: str) -> dict:
    """One of the files under tests/papers."""
    return tomllib.loads((PAPERS / f"{name}.toml").read_text())


def names() -> list[str]:
    """The recipes that the files are of: "bert" for bert.toml and bert.py."""
    shared = ("common", "laptop")
    return sorted(path.stem for path in PAPERS.glob("*.toml") if path.stem not in shared)


def load(source: str, name: str = "recipe") -> ModuleType:
    """The module of a recipe's source."""
    module = ModuleType(name)
    exec(compile(source, name, "exec"), vars(module))
    return module


def source(name: str) -> str:
    """The source of a recipe that Firth ships."""
    return (REPOSITORY / "configs" / f"{name}.py").read_text()


def difference(said: dict, config, tags: str) -> list[str]:
    """Where a config is not as the file of its recipe says, in words; [] where it is.

    Every field of the config, and of the model what the recipe leaves as it is, has to be stated
    once by a group for these tags, or by [run].
    """
    common, found = read_common(), defaults(config) | flatten(config)
    stated = {}
    for group in (group for kind in KINDS for group in said.get(kind, ())):
        if "for" in group and not set(group["for"].split()) & set(tags.split()):
            continue
        label = group.get("where") or group.get("title") or group["why"]
        for field, value in group.items():
            if field not in WORDS and (values := chosen(value, tags)):
                stated.setdefault(field, []).append((values[0], label))
    problems = [
        f"{field} is stated {len(entries)} times: {'; '.join(label for _, label in entries)}"
        for field, entries in stated.items()
        if len(entries) > 1
    ]
    stated |= {field: [(value, "laptop.toml")] for field, value in swept(said, found, tags).items()}
    problems += [f"{field} is stated but not there" for field in stated if field not in found]
    run = common["run"] | said.get("run", {})
    for field, value in found.items():
        if field in stated:
            expected, label = stated[field][0]
        elif field in run:
            (expected,), label = chosen(run[field], tags), "[run]"
        else:
            problems.append(f"{field}={value!r} is stated nowhere: neither of a paper nor of a run")
            continue
        if not equal(field, value, expected, config):
            problems.append(f"{field}={value!r}, but {label}: {expected!r}")
    return problems


def swept(said: dict, found: dict, tags: str) -> dict:
    """What a size for a laptop has from its sweep: {field: value}; {} of any other size."""
    if "laptop" not in tags.split():
        return {}
    laptop = read_laptop()
    (size,) = set(tags.split()) & set(laptop["sizes"])
    shared = {field: value for field, value in laptop["sizes"][size].items() if field in found}
    own = laptop[said["recipe"].removesuffix(".py")][size]
    fields = {field: chosen(value, tags) for field, value in own.items()}
    return shared | {field: values[0] for field, values in fields.items() if values}


def defaults(config) -> dict:
    """What a recipe leaves to the Config of its family, as fields of the model section."""
    if config.model.get("family", "ngram") in OWN_RUNS:
        return {}  # that of the weights to fine-tune, or a model without layers
    fields = dataclasses.fields(family(config.model.family).Config)
    return {f"model.{field.name}": field.default for field in fields}


@functools.cache
def read_common() -> dict:
    """What all recipes have in common."""
    return read("common")


@functools.cache
def read_laptop() -> dict:
    """What the sizes for a laptop have from sweeps: `sizes` and a table for each family."""
    return read("laptop")


def chosen(value, tags: str) -> list:
    """[the value for these tags], [] where there is none: of a table the entry that names most."""
    if not isinstance(value, dict):
        return [value]
    fitting = [key for key in value if key != "*" and set(key.split()) <= set(tags.split())]
    most = max((len(key.split()) for key in fitting), default=0)
    best = [value[key] for key in fitting if len(key.split()) == most]
    assert len(best) < 2, f"{value} has several entries for {tags}"
    return best or ([value["*"]] if "*" in value else [])


def equal(field: str, value, expected, config) -> bool:
    """Whether a field has the value; a warm-up in steps may be told as a part of all."""
    if field == "schedule.warmup" and expected >= 1 > value > 0:
        steps = value * config.steps
        return math.isclose(steps, expected, rel_tol=1e-9) and int(steps) == expected
    value = list(value) if isinstance(value, tuple) else value
    return value == expected and isinstance(value, bool) == isinstance(expected, bool)


def departures() -> list[tuple[str, dict]]:
    """(name of the recipe, departure) of all files."""
    return [(name, group) for name in names() for group in read(name).get("departure", ())]


def table() -> str:
    """docs/departures.md."""
    lines = [
        HEAD,
        "| Recipe | What | The paper or its code | Firth | Why |",
        "|---|---|---|---|---|",
    ]
    for name, group in departures():
        cells = [f"`{name}.py`", *(group[word] for word in ("title", "says", "here", "why"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (REPOSITORY / "docs" / "departures.md").write_text(table())
