"""Recipes as a person reads them: what each is, what it needs, and every field with its comment."""

import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp

from firth import recipe
from firth.display import annotations
from firth.errors import FirthError
from firth.models.model import family
from firth.planning import memory
from firth.run.outline import outline

MINIATURE = re.compile(r"\d+x\d+")  # BERT's, by layers and width


def describe_all() -> list[dict]:
    """What each shipped recipe is; `describe` without its fields, and the sizes it knows.

    sizes: {size: parameters that it trains}, heads and a second model included; {} where the
    recipe has no sizes. BERT's 24 miniatures count as one, "6x512". costs: {size: {"minutes": ...,
    "gib": ...}} of the sizes for a laptop, on two CPU cores or (small) on one GPU.
    """
    return [_overview(name) for name in recipe.shipped()]


def _overview(name: str) -> dict:
    config, path = recipe.read_recipe(name), recipe.SHIPPED / name
    arguments = annotations.arguments(path)
    body = config.model.get("family")
    planned = "task" not in config.data  # steps without examples
    sizes = _sizes(name, body) if body and planned and next(iter(arguments), "") == "size" else ()
    named = [size for size in sizes if not MINIATURE.fullmatch(size)]
    return {
        "recipe": name,
        "title": annotations.read_source(path).title,
        "arguments": arguments,
        "needs": needs(config),
        "miniatures": len(sizes) - len(named),
        "sizes": {size: parameters(f"{name}:{size}") for size in named},
        "costs": costs(body) if named else {},
    }


def _sizes(name: str, body: str):
    """The sizes that a recipe knows: its own (`SIZES`), or those of its body."""
    module = importlib.import_module(f"firth.configs.{Path(name).stem}")
    return getattr(module, "SIZES", None) or family(body).SIZES


def costs(body: str | None) -> dict[str, dict]:
    """What the sizes of a family take that have settings for a laptop; {} where there are none."""
    laptop = importlib.import_module("firth.configs.laptop")  # recipes are no part of the package
    found = laptop.COSTS.get(body, {})
    return {size: {"minutes": minutes, "gib": gib} for size, (minutes, gib) in found.items()}


def needs(config) -> list[str]:
    """What a run of this recipe needs, in words."""
    found = []
    if config.get("objective", {}).get("name") == "tag":
        found.append("sentences whose words have tags (data.train)")
    elif "task" in config.data:
        found.append("labelled examples (GLUE's files, data.train, or a TFDS dataset)")
    if config.model.get("from_init"):
        found.append("weights (init=DIR)")
    if "store" in config.data:
        found.append("a store (data.store, made by firth prepare)")
    if "teacher" in config.get("objective", {}):
        found.append("a teacher (teacher=DIR)")
    return found


def parameters(name: str) -> int:
    """How many parameters a pretraining recipe trains; nothing is computed."""
    try:  # scanned layers are as many parameters as others, and are traced once
        outlined = outline(recipe.read_recipe(name, ["--config.model.scan=True"]))
    except FirthError:  # layers that differ cannot be scanned
        outlined = outline(recipe.read_recipe(name))
    tokens = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    shapes = jax.eval_shape(outlined.model.init, jax.random.key(0), tokens)["params"]
    return sum(part["trained"] for part in memory.parameters(outlined, shapes).values())


def describe(name: str) -> dict:
    """One recipe, Firth's or the user's own: `FILE[:ARGUMENTS]`.

    Returns `recipe`, `title` (the first line of its docstring), `arguments` ({name: default}),
    `needs` and `fields`: {dotted name: {"value": ..., "comment": ...}}. Raises FirthError as
    `recipe.read_recipe` does.
    """
    config = recipe.read_recipe(name)
    path = Path(recipe.find_recipe(name).partition(":")[0])
    comments = annotations.comments_of(path)
    try:
        count = parameters(name)
    except FirthError:  # it fine-tunes, or leaves open what its body needs
        count = None
    return {
        "recipe": name,
        "title": annotations.read_source(path).title,
        "arguments": annotations.arguments(path),
        "needs": needs(config),
        "parameters": count,
        "fields": {
            field: {"value": value, "comment": comments.get(field, "")}
            for field, value in sorted(recipe.flatten(config).items(), key=_place)
        },
    }


def _place(item: tuple[str, object]) -> tuple[str, str]:
    """Fields of the run come first, then those of each section."""
    section, point, field = item[0].partition(".")
    return (section, field) if point else ("", section)


def page(found: dict) -> list[str]:
    """A recipe as text: what it is, then a line for each field."""
    lines = [f"{found['recipe']}   {found['title']}"]
    if found["arguments"]:
        lines.append("  arguments: " + ", ".join(f"{k}={v}" for k, v in found["arguments"].items()))
    lines += [f"  needs: {', '.join(found['needs'])}"] if found["needs"] else []
    if found["parameters"]:
        lines.append(f"  trains {found['parameters']:,} parameters")
    shown = {name: _shown(field["value"]) for name, field in found["fields"].items()}
    wide = max(map(len, shown))
    values = max(len(value) for value in shown.values() if len(value) <= 24)
    section = None
    for name, value in shown.items():
        if section != (section := name.partition(".")[0] if "." in name else ""):
            lines.append("")
        comment = found["fields"][name]["comment"]
        lines.append(f"  {name:<{wide}}  {value:<{values}}  {comment}".rstrip())
    return [
        *lines,
        "",
        "  change any of them: firth train --config "
        f"{found['recipe']} --workdir DIR --config.FIELD=VALUE",
    ]


def _shown(value) -> str:
    """A value as one gives it on the command line."""
    if isinstance(value, list):
        return f"({', '.join(map(repr, value))})"
    return '""' if value == "" else str(value)


def table(found: list[dict]) -> list[str]:
    """The recipes as text, three lines each."""
    lines = []
    for entry in found:
        sizes = [f"{size} ({_millions(count)})" for size, count in entry["sizes"].items()]
        if entry["miniatures"]:
            sizes.append(f"{entry['miniatures']} miniatures (6x512)")
        lines += [f"{entry['recipe']:<20} {entry['title']}"]
        lines += [f"{'':<20}   sizes: {', '.join(sizes)}"] if sizes else []
        taken = [f"{s} {c['minutes']} min, {c['gib']:g} GiB" for s, c in entry["costs"].items()]
        lines += [f"{'':<20}   takes: {'; '.join(taken)}"] if taken else []
        lines += [f"{'':<20}   needs: {', '.join(entry['needs'])}"]
    notes = [
        "A size's number: the parameters that are trained, heads and generator included.",
        "Takes: tiny and mini on two CPU cores, small on one GPU, with a vocabulary of 8,192 "
        "pieces (electra.py:small,paper=False).",
    ]
    return [*lines, "", *notes, "Every field of one: firth recipes bert.py:mini"]


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count < 1e9 else f"{count / 1e9:.3g}B"
