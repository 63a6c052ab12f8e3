"""model.json: what Firth directories and workdirs say of a model, besides its parameters."""

import dataclasses
import math
from pathlib import Path

from firth.errors import FirthError
from firth.models import FAMILIES
from firth.models.heads import HEADS
from firth.models.model import family
from firth.storage.local import read_json

NAME = "model.json"
VERSION = 1
# Fields of a Config that say how a model is run. They are no part of the model's description.
EXECUTION = ("scan", "remat", "dtype", "attention")
LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Description:
    """A model without its parameters.

    spec: `family` and the fields of that family's Config, without EXECUTION.
    heads: their names.
    num_labels: classes (or regression targets) of the classifier.
    labels: names of the classes, or None.
    regression: whether the classifier predicts numbers.
    multilabel: whether it gives a text any number of labels, each by a sigmoid.
    tasks: of a model of several, {name: (its labels, its kind)}, in the order of their heads.
    """

    spec: dict
    heads: tuple[str, ...]
    num_labels: int
    labels: tuple[str, ...] | None
    regression: bool
    multilabel: bool = dataclasses.field(default=False, kw_only=True)
    tasks: dict[str, tuple[tuple[str, ...], str]] = dataclasses.field(
        default_factory=dict, kw_only=True
    )

    @property
    def outputs(self) -> tuple[tuple[str, int], ...]:
        """(name, outputs) of the head of each of several tasks."""
        return tuple((name, max(len(labels), 1)) for name, (labels, _) in self.tasks.items())


def to_json(description: Description, **more) -> dict:
    """The content of model.json.

    `more` holds what only one kind of directory has. A Firth directory has `sha256`, the checksum
    of params.safetensors, and `published` (`firth.weights.read.Saved.published`) if there is one. A
    workdir has `best`, the metric that selects its best checkpoint, and `generator`: {"model":
    spec, "tied": bool} of the generator that the run trains, or None.
    """
    own = {"multilabel": True} if description.multilabel else {}
    if description.tasks:
        own["tasks"] = {
            name: {"labels": list(labels), "kind": kind}
            for name, (labels, kind) in description.tasks.items()
        }
    whole = {
        "firth": VERSION,
        "model": description.spec,
        "heads": list(description.heads),
        "num_labels": description.num_labels,
        "labels": list(description.labels) if description.labels else None,
        "regression": description.regression,
    }
    return whole | own | more


def read_description(path: Path) -> tuple[Description, dict]:
    """(description, whole content) of the model.json in a directory.

    Raises FirthError naming the file if it is missing, damaged or of another version.
    """
    file = path / NAME
    whole = read_json(file)
    if (version := whole.get("firth")) != VERSION:
        raise FirthError(f"{file}: firth={version!r}; this Firth reads version {VERSION}")
    spec, heads, labels = whole.get("model"), whole.get("heads"), whole.get("labels")
    texts = isinstance(heads, list) and all(isinstance(head, str) for head in heads)
    if not isinstance(spec, dict) or not texts or not isinstance(labels, list | None):
        raise FirthError(f"{file} is damaged: expected model {{...}}, heads [...] and labels")
    spec = complete_spec(spec, file)
    if unknown := {head for head in heads if ":" not in head} - HEADS.keys():
        raise FirthError(f"{file}: there is no head {min(unknown)!r}")
    check_field(whole.get("num_labels"), 2, f"{file}: num_labels")
    description = Description(
        spec=spec,
        heads=tuple(heads),
        num_labels=whole["num_labels"],
        labels=tuple(labels) if labels else None,
        regression=bool(whole.get("regression")),
        multilabel=bool(whole.get("multilabel")),
        tasks=_tasks(whole.get("tasks", {}), file),
    )
    return description, whole


def _tasks(written, file: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    try:
        return {
            name: (tuple(map(str, task["labels"])), str(task["kind"]))
            for name, task in written.items()
        }
    except (AttributeError, KeyError, TypeError):
        raise FirthError(f"{file} is damaged: expected tasks with labels and kind") from None


def complete_spec(spec: dict, where) -> dict:
    """A spec read from a file, with the family's defaults for missing fields, without EXECUTION.

    Raises FirthError, beginning with `where`, for an unknown family or a value of a wrong type.
    """
    name = spec.get("family")
    if not isinstance(name, str) or (name not in FAMILIES and ":" not in name):
        raise FirthError(f"{where}: model.family={name!r}; Firth knows {', '.join(FAMILIES)}")
    defaults = default_fields(name)
    for field in spec.keys() & defaults.keys():
        default = 0 if field == "pad_id" else defaults[field]  # an id may be 0
        check_field(spec[field], default, f"{where}: model.{field}")
    return {k: v for k, v in (defaults | spec).items() if k not in EXECUTION}


def default_fields(name: str) -> dict:
    """{field: default} of a family's spec."""
    defaults = {f.name: f.default for f in dataclasses.fields(family(name).Config)}
    return defaults | {"classifier_dropout": 0.1}


def check_field(value, default, where: str):
    """Raise FirthError, beginning with `where`, unless a value has the type of its default.

    An integer whose default is not 0 must be positive, and a float finite and not negative. A tuple
    is a list of positive integers in the file.
    """
    if type(default) is int:
        least, expected = (1, "a positive integer") if default else (0, "an integer from 0")
        good = type(value) is int and least <= value <= LARGEST
    elif type(default) is float:
        good = type(value) in (int, float) and math.isfinite(value) and value >= 0
        expected = "a number that is not negative"
    elif type(default) is tuple:
        good = type(value) is list and all(type(x) is int and 0 < x <= LARGEST for x in value)
        expected = "a list of positive integers"
    else:
        good, expected = type(value) is type(default), f"a {type(default).__name__}"
    if not good:
        raise FirthError(f"{where}={value!r}, expected {expected}")
