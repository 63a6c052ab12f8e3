"""The config that a workdir keeps: what a run may change of it, and what its evaluation may.

`config.json` is data: it is read, and no code runs.
"""

import json
from pathlib import Path

import ml_collections

from firth.errors import FirthError
from firth.recipe import (
    FREE,
    LATER,
    PLACES,
    completed,
    flatten,
    like,
    located,
    read,
    suggest,
    with_fields,
)
from firth.storage.local import write_text
from firth.storage.places import has_checkpoint, same

# (value in a workdir, value now) that mean the same run: a field that was not there (None) or had
# another default, and the name of a task of one's own files.
ALIKE = {
    "data.task": (("sst2", ""), ("custom", ""), ("", "custom")),
    "data.kind": (("classification", ""),),
    "data.dev_fraction": ((None, 0.1),),
    "data.choices": ((None, ""),),
    "data.packed": ((None, False),),
    "data.tasks": ((None, ""),),
    "data.task_power": ((None, 1.0),),
    "unfreeze_epochs": ((None, 0.0),),
    "transfer_vocabulary": ((None, False),),
    "freeze": ((None, ""),),
    "patience": ((None, 0),),
    "objective.class_weights": ((None, ""),),
    "optimizer.legacy_layer_decay": ((False, None),),
    "optimizer.layer_decay_top": ((None, 1),),
    "optimizer.layer_decay_exclude": ((None, []),),
    "lora.rank": ((None, 0),),
    "lora.alpha": ((None, 16.0),),
    "lora.targets": ((None, "attention/(query|value|qkv)(/kernel)?$"),),
}

# Fields that may grow in a workdir: the run goes on, under the schedule of its whole new length.
LENGTH = ("epochs", "steps")

# Fields of the evaluation of a finished run. They may differ from those of its training.
MEASURING = ("eval", "data.heldout_store", "product_dtype")


def record(config, workdir: Path):
    """Write the resolved config as `config.json`, after a check against an existing one.

    The fields of LENGTH may be larger than there. A config without a checkpoint holds no run, so it
    is replaced. Raises FirthError, naming the fields that differ, if the workdir has the run of
    another config, and for more epochs of a run whose length is in steps.
    """
    path = workdir / "config.json"
    if path.exists() and has_checkpoint(workdir):
        is_longer(config, workdir)  # raises if it is another run's
    write_text(path, json.dumps(config.to_dict(), indent=2) + "\n")


def is_longer(config, workdir: Path) -> bool:
    """Whether a config asks for more epochs or steps than that of the run in a workdir.

    Raises FirthError as `record`, if it is the config of another run.
    """
    new = json.loads(json.dumps(config.to_dict()))
    old, now = LATER | flatten(read(workdir)), LATER | flatten(new)
    differing = [
        f"{name}: {old.get(name)!r} there, {now.get(name)!r} now"
        for name in sorted(old.keys() | now.keys())
        if not (_free(name, now) or _goes_on(name, old.get(name), now.get(name)))
    ]
    if differing:
        raise FirthError(
            f"{workdir} holds a run of another config ({'; '.join(differing[:5])}"
            f"{'; ...' if len(differing) > 5 else ''}); choose another --workdir, or give the "
            "same config to resume that run"
        )
    if old.get("epochs") != now.get("epochs") and now.get("steps"):
        raise FirthError(
            f"epochs={now['epochs']:g} does not count, since steps={now['steps']} is set; to go "
            "on, give more steps: --config.steps=N"
        )
    return any(old.get(name) != now.get(name) for name in LENGTH)


def remeasured(config, arguments: list[str]) -> tuple[ml_collections.ConfigDict, dict]:
    """A recorded config with overrides of the fields in MEASURING, and {field: new value}.

    `arguments` read `--config.FIELD=VALUE`. `eval.model` takes any field of the model section;
    `eval.length` exists in pretraining. Raises FirthError for another argument or field, or a value
    of another type.
    """
    config = completed(config)
    known = {"data.heldout_store": ""} | ({} if "task" in config.data else {"eval.length": 0})
    known |= flatten(config.model, "eval.model.") | flatten(config)
    known = {name: value for name, value in known.items() if _among(name, MEASURING)}
    changed = {}
    for item in arguments:
        name, separator, text = item.removeprefix("--config.").partition("=")
        if not item.startswith("--config.") or not separator:
            raise FirthError(f"unexpected argument {item!r}; options are --name=value")
        if name not in known:
            raise FirthError(f"a run is not measured by {name!r}{suggest(name, known)}")
        try:
            changed[name] = like(known[name], text)
        except ValueError:
            raise FirthError(f"{item}: expected a value like {known[name]!r}") from None
    return located(with_fields(config, changed)), changed


def _goes_on(name: str, old, now) -> bool:
    """Whether a run with the value `old` of a field may go on with `now`."""
    if old == now or (old, now) in ALIKE.get(name, ()):
        return True
    if name in PLACES and old and now and same(old, now):
        return True
    return name in LENGTH and bool(old and now) and now > old


def _free(name: str, config: dict) -> bool:
    """Whether a field may change: not that of an evaluation which the training heeds."""
    decides = config.get("patience") and _among(name, ("checkpoint.best", "checkpoint.best_mode"))
    heeds = "plateau.name" in config or config.get("patience")
    return _among(name, FREE) and not (decides or (heeds and _among(name, ("eval",))))


def _among(name: str, sections) -> bool:
    return any(name == section or name.startswith(section + ".") for section in sections)
