"""The runs of a sweep: a grid of settings of one recipe, with several seeds each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.errors import FirthError
from firth.recipe import flatten, like, read_recipe, suggest

SHORT = {"lr": "schedule.lr", "batch": "batch_size"}
SEEDS = "seeds"


@dataclass(frozen=True)
class SweepRun:
    """One run: a seed of one cell of the grid.

    setting: {name as on the command line: value}, the cell. seed: None where a recipe has none.
    arguments: those of `firth train`.
    """

    setting: dict
    seed: int | None
    workdir: Path
    arguments: tuple[str, ...]

    @property
    def log(self) -> Path:
        """The file of what its process prints."""
        return self.workdir.with_suffix(".log")


def make_runs(
    recipe: str, workdir: Path, items: Sequence[str], overrides: Sequence[str]
) -> list[SweepRun]:
    """The runs of a grid, a workdir each: `<workdir>/lr=5e-05_batch=16/seed-0`.

    Args:
      recipe: as for `firth train`.
      workdir: the folder of the sweep.
      items: "FIELD=VALUE,VALUE,..." for each field of the grid. A field may be given by the last
        part of its name where only one has it; "batch" is batch_size. A name that is no field is
        an argument of the recipe, "frozen=true,false". "seeds=5" is the seeds 0 to 4, "seeds=3,7"
        those two; without it there is the seed 0.
      overrides: "--config.FIELD=VALUE" for all runs.

    Every setting is read by the recipe before any run begins. Raises FirthError for an unknown or
    repeated field, for a repeated value or two that give a folder the same name, and for a value
    that the recipe refuses.
    """
    config = read_recipe(recipe, overrides)
    fields = flatten(config)
    grid, seeds = {}, [0] if "seed" in fields else [None]
    if sum(item.startswith(f"{SEEDS}=") for item in items) > 1:
        raise FirthError("seeds are given twice; expected them once")
    for item in items:
        name, separator, text = item.partition("=")
        values = text.split(",")
        if not separator or "" in values:
            raise FirthError(f"{item!r}: expected FIELD=VALUE,VALUE,...")
        if name == SEEDS and None in seeds:
            raise FirthError(f"{item!r}: {recipe} draws nothing at random; leave seeds out")
        if name == SEEDS:
            seeds = _seeds(item, values)
        elif (full := _full(name, fields)) in (_full(other, fields) for other in grid):
            raise FirthError(f"{item!r}: {full} is given twice; expected each field once")
        elif full in fields:
            grid[name] = _different(item, [_value(item, fields[full], text) for text in values])
        else:
            grid[name] = _different(item, values)
    _check(grid, fields, overrides)
    runs, cells = [], set()
    for values in itertools.product(*grid.values()):
        setting = dict(zip(grid, values, strict=True))
        full = {_full(name, fields): value for name, value in setting.items()}
        own = [f"--config.{name}={value}" for name, value in full.items() if name in fields]
        arguments = {name: value for name, value in full.items() if name not in fields}
        given = _with_arguments(recipe, arguments)
        _check_setting(given, arguments, [*overrides, *own], fields)
        # A comma would be read as the mean of two models, "A,B".
        cell = "_".join(f"{name}={value}" for name, value in setting.items()).replace("/", "_")
        if cell in cells:
            raise FirthError(f"two settings of the grid would have the folder {workdir / cell}")
        cells.add(cell)
        for seed in seeds:
            folder = workdir / cell / f"seed-{seed or 0}"
            argv = [f"--config={given}", f"--workdir={folder}", *overrides, *own]
            argv += [] if seed is None else [f"--config.seed={seed}"]
            runs.append(SweepRun(setting, seed, folder, tuple(argv)))
    return runs


def _seeds(item: str, values: list[str]) -> list[int]:
    """The seeds of "seeds=N" or "seeds=A,B"; FirthError for what is no number."""
    try:
        seeds = [int(value) for value in values]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0 or seeds == [0]:
        raise FirthError(f"{item!r}: expected how many seeds, or the seeds: seeds=5, seeds=3,7")
    return list(range(seeds[0])) if len(seeds) == 1 else _different(item, seeds)


def _different(item: str, values: list) -> list:
    """The values; FirthError where two are the same, also if written in two ways."""
    if repeated := [value for n, value in enumerate(values) if value in values[:n]]:
        raise FirthError(f"{item!r}: {repeated[0]} is given twice; expected different values")
    return values


def _full(name: str, fields: dict) -> str:
    """The dotted name of a field, or the name as it is where no field has it.

    Raises FirthError where several have it.
    """
    if name in fields:
        return name
    found = [SHORT[name]] if SHORT.get(name) in fields else []
    found = found or [full for full in fields if full.rpartition(".")[2] == name]
    if len(found) > 1:
        raise FirthError(f"{name!r} may be {' or '.join(found)}; give one of these")
    return found[0] if found else name


def _with_arguments(recipe: str, arguments: dict[str, str]) -> str:
    """The recipe with further arguments, "finetune.py:mini,frozen=true"."""
    more = ",".join(f"{name}={value}" for name, value in arguments.items())
    return f"{recipe}{',' if ':' in recipe else ':'}{more}" if more else recipe


def _check_setting(given: str, arguments: dict[str, str], overrides: Sequence[str], fields: dict):
    """Raise FirthError for a setting that the recipe refuses, naming its arguments.

    `given` is the recipe with its arguments; `overrides` are those of all runs and the fields of
    the setting.
    """
    try:
        read_recipe(given, overrides)
    except FirthError as error:
        if not arguments:
            raise
        said = ",".join(f"{name}={value}" for name, value in arguments.items())
        unknown = [name for name in arguments if f"has no argument {name!r}" in str(error)]
        no_field = [f"the recipe has no field {n!r}{suggest(n, fields)}; " for n in unknown]
        raise FirthError(f"{said!r}: {''.join(no_field)}{error}") from None


def _value(item: str, default, text: str):
    if isinstance(default, tuple | list):
        return text  # the recipe reads it, as it does --config.FIELD=VALUE
    try:
        return like(default, text)
    except (TypeError, ValueError):
        raise FirthError(f"{item!r}: expected values like {default!r}, not {text!r}") from None


def _check(grid: dict, fields: dict, overrides: Sequence[str]):
    """Raise FirthError for a field that a sweep sets itself, or that is set for all runs, too."""
    own = [_full(name, fields) for name in grid]
    for name in ("seed", "seeds"):
        if name in own or any(item.startswith(f"--config.{name}=") for item in overrides):
            raise FirthError(f"a sweep has seeds of its own; give seeds=N instead of {name}")
    for name in own:
        if any(item.startswith(f"--config.{name}=") for item in overrides):
            raise FirthError(f"--config.{name} and {name} of the grid: give one of them")
