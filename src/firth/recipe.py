"""Recipes: how Firth locates, reads and overrides config files.

A recipe is Python code and runs when it is loaded. So Firth loads one only from the path that the
user names or from its own recipes, never from a checkpoint or a hub.
"""

import difflib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ml_collections
from absl import flags
from ml_collections import config_flags

from firth.errors import FirthError
from firth.storage.local import read_json
from firth.storage.places import absolute, instead
from firth.storage.remote import is_url

log = logging.getLogger("firth")
SHIPPED = Path(importlib.import_module("firth.configs").__path__[0])

# Fields that may change when a run resumes. None of them changes a parameter as long as no step
# fails.
FREE = (
    *("log_every", "eval", "evals", "checkpoint", "mesh"),
    *("data.loader", "data.prefetch", "progress", "curves"),
    *("nonfinite", "spike.policy", "rollback", "model.fused_attention", "reduce_async", "until"),
    "model.attention",
    "settings",
)

# Fields that older recipes lack, with the behaviour of a run without them. These values stay when
# the common defaults (configs/common.py) change, since old workdirs resume with them.
LATER = {
    "product_dtype": "float32",
    "reduce_dtype": "float32",
    "reduce_async": False,
    "mesh.zero1": False,
    "nonfinite": "stop",
    "spike.policy": "rollback",
    "spike.deviations": 0.0,
    "spike.window": 100,
    "rollback.batches": 100,
    "rollback.limit": 3,
    "model.init_stddev": 0.02,
    "model.attention": "plain",
    "curves": True,
}

# Fields that name a file or a folder. A config has the absolute names of those that exist.
PLACES = (
    *("data.store", "data.heldout_store", "data.dir", "data.tokenizer", "init_from", "resume"),
    *("objective.teacher", "objective.generator_from", "data.train", "data.dev", "data.test"),
    *("data.vectors", "model.features"),
)

# Families that are not trained by the loop of train.py, and have none of its fields.
OWN_RUNS = ("ngram", "word2vec", "glove", "logistic")

BOOLS = dict.fromkeys(("1", "true", "yes"), True) | dict.fromkeys(("0", "false", "no"), False)


def parse_arg(arg: str | None, /, what: str = "recipe", **defaults):
    """Fields of a recipe's string argument, `bert.py:mini,length=512`, over their defaults.

    A first item without `=` sets the first field. Each value has the type of its default. `what` is
    the recipe or the option of a command in messages.
    Raises FirthError for an unknown field (with the nearest name) or an unreadable value.
    """
    values = ml_collections.ConfigDict(defaults)
    for i, item in enumerate(filter(None, (arg or "").split(","))):
        name, separator, text = item.partition("=")
        if not separator:
            if i:
                raise FirthError(f"{what} argument {item!r} should read name=value")
            name, text = next(iter(defaults)), item
        if name not in defaults:
            raise FirthError(f"this {what} has no argument {name!r}{suggest(name, defaults)}")
        try:
            values[name] = like(defaults[name], text)
        except ValueError:
            kind = type(defaults[name]).__name__
            raise FirthError(f"{what} argument {name}={text!r} is not a {kind}") from None
    return values


def like(value, text: str):
    """Parse a text as the type of `value`; raises ValueError if it cannot."""
    if not isinstance(value, bool):
        return type(value)(text)
    if text.lower() not in BOOLS:
        raise ValueError(text)
    return BOOLS[text.lower()]


def suggest(name: str, known) -> str:
    """'; did you mean x?' with the nearest known name, or the list of all known names."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else f"; it knows {', '.join(sorted(known))}"


def is_recipe(path: Path) -> bool:
    """Whether a file has `get_config`; common.py has none, since recipes only import it."""
    return path.is_file() and b"get_config" in path.read_bytes()


def shipped() -> list[str]:
    """File names of the recipes that Firth ships."""
    return sorted(path.name for path in SHIPPED.glob("*.py") if is_recipe(path))


def find_recipe(path: str) -> str:
    """Path of a recipe: the user's own file, else the one of that name that Firth ships.

    `path` may end in `:ARGUMENTS`, and so does the result. Raises FirthError if there is no such
    recipe.
    """
    name, separator, arg = path.partition(":")
    if Path(name).is_file():
        if not is_recipe(Path(name)):
            raise FirthError(f"{name} is no recipe: it has no get_config")
        folder = str(Path(name).resolve().parent)
        if folder not in sys.path:  # as for a script: a recipe may import modules beside it
            sys.path.insert(0, folder)
        return path
    if Path(name).name not in shipped():
        raise FirthError(f"no recipe {name!r}: not a file, and Firth ships {', '.join(shipped())}")
    return f"{SHIPPED / Path(name).name}{separator}{arg}"


def from_command_line(argv: list[str], *, prog: str, more: Callable[[], str] = str):
    """Read `--config FILE[:ARGS] --workdir DIR [--config.field=value ...]`.

    Returns (locked ConfigDict, workdir); the workdir is a Path or a URL, by default that of
    `_usual_workdir`. `more` gives the text that follows the usage in the help. Raises FirthError
    for bad arguments.
    """
    if not argv or any(a in ("-h", "--help", "-help") for a in argv):
        print(HELP.format(prog=prog) + more())
        raise SystemExit(0 if argv else 2)
    argv, recipe = _locate_recipe(argv)
    if recipe is None:
        raise FirthError(f"--config is required; see {prog} --help")
    values = _flag_values([prog, *argv])
    flags.DEFINE_string("workdir", None, "Folder of the run.", flag_values=values)
    config = _config(values, [prog, *argv], recipe)
    if not (workdir := values.workdir or _usual_workdir(config, recipe)):
        raise FirthError(f"--workdir is required; see {prog} --help")
    return completed(config), workdir if is_url(workdir) else Path(workdir)


def _usual_workdir(config, recipe: str) -> str:
    """`runs/finetune-reviews` for a file reviews.csv of one's own labels; "" for other runs."""
    data = config.get("data", {})
    if not data.get("train") or ":" in data.get("task", ""):
        return ""
    name = f"{Path(recipe.partition(':')[0]).stem}-{Path(data.train).name.partition('.')[0]}"
    log.info("no --workdir is given, so the run lies in runs/%s", name)
    return f"runs/{name}"


HELP = """usage: {prog} --config RECIPE[:ARGUMENTS] --workdir DIR [--config.FIELD=VALUE ...]

Train from a recipe. The run resumes from its newest checkpoint if the workdir holds one.

  --config    a recipe file, yours or one that Firth ships: bert.py:mini, finetune.py:task=sst2
  --workdir   the folder of the run: config.json, checkpoints/, metrics.jsonl, TensorBoard events;
              or a URL (gs://...), to which every save uploads a local copy
  --config.X  override any field of the recipe, for instance --config.data.store=store/

several processes, one a host; a Cloud TPU VM and SLURM's srun set these by themselves:
  --coordinator=HOST:PORT  address of process 0, the same for all          (FIRTH_COORDINATOR)
  --processes=N            number of processes; 1 turns the search off     (FIRTH_PROCESSES)
  --process=I              number of this process, from 0                  (FIRTH_PROCESS)
  --gather=SECONDS         time for all processes to join; default 300     (FIRTH_GATHER)
  --patience=SECONDS       a process silent for this long counts as dead   (FIRTH_PATIENCE)
                           and ends the others; default 30
  --stall=SECONDS          the same if no process takes a step; default    (FIRTH_STALL)
                           3600

exit status: 0 finished, 2 bad input, 130 and 143 saved and stopped by Ctrl-C and by SIGTERM, 75 a
process of several died or hangs (start all of them again)"""


def read_recipe(path: str, overrides=()) -> ml_collections.ConfigDict:
    """The config of `FILE[:ARGUMENTS]`, for use in Python; locked, as on the command line.

    `overrides` are command-line arguments such as "--config.batch_size=64". Raises FirthError for a
    bad recipe or override.
    """
    path = find_recipe(path)
    argv = ["firth", f"--config={path}", *overrides]
    return completed(_config(_flag_values(argv), argv, path))


def _config(values: flags.FlagValues, argv, recipe: str) -> ml_collections.ConfigDict:
    """The config of a recipe with the overrides of `argv`, whose first item is the program."""
    try:
        with _without_bytecode():
            rest, config = values(argv), values.config
    except (AttributeError, KeyError) as error:
        raise FirthError(_unknown_field(argv, recipe, error)) from None
    except Exception as error:  # a recipe is code, which may fail in any way
        raise FirthError(_explain(error, recipe)) from None
    if not isinstance(config, ml_collections.ConfigDict):
        raise FirthError(f"{recipe}: get_config returned {config!r:.40}, expected a ConfigDict")
    if len(rest) > 1:
        raise FirthError(f"unexpected argument {rest[1]!r}; options are --name=value")
    return config


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Modules that are loaded meanwhile leave no `__pycache__` beside them.

    Python would take the bytecode there for that of a recipe which a script has edited since,
    within the same second and to the same size.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _flag_values(argv) -> flags.FlagValues:
    """Flags for `argv`; without it, absl would look for overrides in `sys.argv`."""
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", lock_config=True, flag_values=values, sys_argv=argv)
    return values


def _locate_recipe(argv):
    """The arguments with the path of the recipe, and that path or None.

    The recipe comes first, wherever it stood: absl reads no override of a field before it.
    """
    rest, recipe, expect = [], None, False
    for item in argv:
        if expect:
            recipe, expect = find_recipe(item), False
        elif item.startswith(("--config=", "-config=")):
            recipe = find_recipe(item.partition("=")[2])
        elif item in ("--config", "-config"):
            expect = True
        else:
            rest.append(item)
    return rest if recipe is None else [f"--config={recipe}", *rest], recipe


def _unknown_field(argv, recipe, error) -> str:
    """One line for an override of a field that the recipe does not have."""
    names = (item.lstrip("-").split("=")[0] for item in argv)
    fields = [name.removeprefix("config.") for name in names if name.startswith("config.")]
    argv = ["firth", f"--config={recipe}"]
    # This raises if the recipe itself is wrong.
    known = flatten(_config(_flag_values(argv), argv, recipe))
    for field in fields:
        if field not in known:
            return f"the recipe has no field {field!r}{suggest(field, known)}"
    return _explain(error, recipe)


def _explain(error, recipe: str) -> str:
    """absl's message in one line, or that of the error that absl wraps with a traceback.

    That is a FirthError, or an error in the code of the recipe, with its file and line.
    """
    if found := re.match(r"flag --config\.([\w.]+)=(.*?): ", str(error), re.DOTALL):
        return _misread(*found.groups(), read_recipe(recipe))
    path, message, inner = recipe.partition(":")[0], str(error), error
    while inner is not None:
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(inner.__traceback__)
            if os.path.realpath(frame.filename) == os.path.realpath(path)
        ]
        if isinstance(inner, FirthError):
            message = str(inner)
        elif isinstance(inner, SyntaxError):
            message = f"{inner.filename}:{inner.lineno}: {inner.msg}"
        elif lines:
            message = f"{path}:{lines[-1]}: {type(inner).__name__}: {inner}"
        inner = inner.__context__
    return " ".join(message.split())


def _misread(field: str, text: str, config) -> str:
    """One line for a value that cannot be read as that of its field."""
    fields = flatten(config)
    if field not in fields:
        return f"{field} is a section; set one of its fields, as in --config.{field}.NAME=VALUE"
    kinds = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
    kind = kinds.get(type(fields[field]), f"a value like {fields[field]!r}")
    return f"{field}={text!r}: expected {kind}"


def flatten(config, prefix: str = "") -> dict:
    """{'data.store': value} for a nested config."""
    flat = {}
    for name in config:
        value = config[name]
        if isinstance(value, dict | ml_collections.ConfigDict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat


def located(config) -> ml_collections.ConfigDict:
    """A copy of a config with absolute names for the files and folders that exist.

    Files of a task stay relative to `data.dir` if that is set, and are no files at all in TFDS.
    """
    fields = flatten(config)
    relative = fields.get("data.dir") or str(fields.get("data.task")).startswith("tfds:")
    names = PLACES[:-3] if relative else PLACES
    changes = {name: absolute(str(fields[name])) for name in names if fields.get(name)}
    if fields.get("data.tasks") and not relative:  # NAME,NAME=FILE
        parts = (entry.partition("=") for entry in str(fields["data.tasks"]).split(","))
        entries = (name + mark + (file and absolute(file)) for name, mark, file in parts)
        changes["data.tasks"] = ",".join(entries)
    return with_fields(config, changes)


def completed(config) -> ml_collections.ConfigDict:
    """A copy of a config with the fields of LATER that it lacks.

    Fields of the model stay out: its family has their defaults.
    """
    present = flatten(config)
    if present.get("model.family") in OWN_RUNS:
        return config
    missing = {k: v for k, v in LATER.items() if k not in present and not k.startswith("model.")}
    return with_fields(config, missing)


def with_fields(config, changes: dict) -> ml_collections.ConfigDict:
    """A copy of a config with new values for fields, {dotted name: value}."""
    config = config.copy_and_resolve_references()
    with config.unlocked():
        for name, value in changes.items():
            *sections, field = name.split(".")
            section = config
            for part in sections:
                if part not in section:
                    section[part] = ml_collections.ConfigDict()
                section = section[part]
            section[field] = value
    return config


def read(workdir: Path) -> ml_collections.ConfigDict:
    """The config that a workdir was run with, read as JSON: no code runs.

    Raises FirthError if `config.json` is missing or not JSON.
    """
    path = Path(workdir) / "config.json"
    if not path.is_file():
        raise FirthError(f"{workdir} is not a workdir: it has no config.json{instead(workdir)}")
    fields = read_json(path)
    if "model_type" in fields or "architectures" in fields:
        raise FirthError(f"{workdir} is not a workdir but a published model: see its config.json")
    return ml_collections.ConfigDict(fields)
