"""The published (Hugging Face) layout as data: config.json and tensor names, in both directions.

Pure functions of dictionaries; `firth.weights.read` does the files. What a family calls its tensors
and settings stands in the family's own file, for instance `NAMES` of `firth.models.bert`.
"""

import dataclasses
import itertools
import math
import re
from typing import NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.models import FAMILIES, MODEL_TYPES
from firth.models.model import classifies_pooled, create, family, to_layout
from firth.weights import activations, buffers

# kind of module -> (leaf here, leaf there, whether the two are each other's transpose)
LEAVES = {
    "dense": (("kernel", "weight", True), ("bias", "bias", False)),
    "norm": (("scale", "weight", False), ("bias", "bias", False)),
    "embed": (("embedding", "weight", False),),
    "bias": (("bias", "bias", False),),
    "kernel": (("kernel", "weight", True),),  # a dense layer without bias
    "scale": (("scale", "weight", False),),  # a norm without bias
    "raw": (("", "", False),),  # a tensor that is no module's
    "conv": (("kernel", "weight", False), ("bias", "bias", False)),  # GPT's dense layer
}
OLD_NAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))  # LayerNorm in converted TF models
# How a model is run, not what it is: these fields of a Config are not exchanged.
EXECUTION = ("scan", "remat", "dtype")
LARGEST = 2**31 - 1


class Row(NamedTuple):
    """One published tensor: where it lives here, and whether it is transposed there."""

    path: str
    transposed: bool


def name_table(spec: dict, present) -> dict[str, Row]:
    """{published name: Row} of everything that a model of this size may hold, aliases included.

    `present` (heads, or published names) decides between two heads that publish the same name:
    where a family says CONTESTED = (head, other head, a tensor of the first alone).
    """
    module = family(spec["family"])
    rows = (*module.NAMES, *module.ALIASES)
    if contested := getattr(module, "CONTESTED", None):
        head, other, sign = contested
        loser = other if head in present or sign in present else head
        rows = [row for row in rows if row[0].split("/")[0] != loser]
    counts = {letter: range(spec[field]) for letter, field in module.RANGES.items()}
    table = {}
    for ours, theirs, kind in rows:
        letters = [letter for letter in counts if f"{{{letter}}}" in ours]
        for numbers in itertools.product(*(counts[letter] for letter in letters)):
            place = dict(zip(letters, numbers, strict=True))
            for leaf, published_leaf, transposed in LEAVES[kind]:
                name = ".".join(filter(None, (theirs.format(**place), published_leaf)))
                path = "/".join(filter(None, (ours.format(**place), leaf)))
                table[name] = Row(path, transposed)
    return table


def canonical(name: str, spec: dict, table: dict) -> str:
    """The table's spelling of a published name: with the prefix, and without gamma and beta."""
    module = family(spec["family"])
    for pattern, replacement in OLD_NAMES:
        name = re.sub(pattern, replacement, name)
    prefixed = module.PREFIX + name
    return prefixed if prefixed in table or buffers.named(prefixed, spec) else name


def check_params(found: dict, described: dict, heads, where: str, names: dict | None = None):
    """Raise FirthError unless flat parameters are exactly those of the described model.

    Shapes come from the model itself, by `eval_shape`: nothing is allocated, however large the
    sizes that a file claims. `names` maps paths to what the file calls them.
    """
    names = names or {}
    spec = described["spec"]
    check_depth(spec, len(found), where)
    try:
        model = create(spec | {"scan": True}, heads, described["num_labels"])
    except FirthError as error:
        raise FirthError(f"{where}: {error}") from None

    def init(key):
        return to_layout(model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], scan=False)

    shapes = flax.traverse_util.flatten_dict(jax.eval_shape(init, jax.random.key(0)), sep="/")
    if missing := [names.get(path, path) for path in shapes if path not in found]:
        raise FirthError(f"{where} lacks {len(missing)} of its tensors: {listed(missing)}")
    if surplus := [path for path in found if path not in shapes]:
        raise FirthError(f"{where} holds tensors that the model has not: {listed(surplus)}")
    wrong = [
        f"{names.get(path, path)} is {list(found[path].shape)}, expected {list(leaf.shape)}"
        for path, leaf in shapes.items()
        if found[path].shape != leaf.shape
    ]
    if wrong:
        raise FirthError(f"{where} does not fit its description: {listed(wrong)}")


def check_depth(spec: dict, tensors: int, where: str):
    """Refuse a claimed depth that so few tensors cannot have, before anything runs over it."""
    for field in family(spec["family"]).RANGES.values():
        if spec[field] > tensors:
            raise FirthError(f"{where} holds {tensors} tensors, too few for {field}={spec[field]}")


def listed(names, most: int = 8) -> str:
    """'a, b, c, ... (12 more)'."""
    names = list(names)
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


# ---------------------------------------------------------------------------------- tensors


def read_tensors(tensors: dict, described: dict, config: dict, where: str):
    """Turn published tensors into parameters.

    Args:
      tensors: {published name: array}.
      described: what `read_config` made of the config; `pooler` is added to its spec.
      config: the config.json itself.
      where: how errors call the file.

    Returns:
      ({flat path: float32 array}, heads, published names that Firth has no place for).
    Raises FirthError for missing names, wrong shapes, other dtypes and untied copies.
    """
    spec = described["spec"]
    check_depth(spec, len(tensors), where)
    table = name_table(spec, tensors)
    found, names, unknown = {}, {}, []
    for name, tensor in tensors.items():
        row = table.get(canonical(name, spec, table))
        if row is None:
            if buffers.named(canonical(name, spec, table), spec):
                buffers.check(name, tensor, spec, where)
            else:
                unknown.append(name)
            continue
        array = to_float32(tensor, f"{where}: {name}")
        array = array.T if row.transposed else array
        if row.path in found and not np.array_equal(array, found[row.path], equal_nan=True):
            raise FirthError(
                f"{where}: {name} differs from {names[row.path]}; Firth ties the two, "
                "so untied weights cannot be represented"
            )
        found.setdefault(row.path, array)
        names.setdefault(row.path, name)

    heads = _heads(found, tensors, spec, config)
    for path in [p for p in found if p.split("/")[0] not in ("encoder", *heads)]:
        unknown.append(names[path])
        del found[path]
    if "pooler" in _defaults(spec["family"]):
        pooled = any(path.startswith("encoder/pooler/") for path in found)
        spec["pooler"] = pooled or bool({"nsp", "sop"} & set(heads))
    usual = {row.path: name for name, row in reversed(table.items())}
    check_params(found, described, heads, where, usual | names)
    return found, heads, sorted(unknown)


def _heads(found: dict, names, spec: dict, config: dict) -> tuple[str, ...]:
    """The heads that the tensors belong to, and those without any that the class has.

    Other tasks' models also call a head `classifier`; only one on the pooled output, in a class
    known here, is a classifier of texts.
    """
    module = family(spec["family"])
    classes = config.get("architectures")
    classes = set(map(str, classes)) if isinstance(classes, list) else set()
    present = {path.split("/")[0] for path in found}
    for head, alias in getattr(module, "TIED_HEADS", {}).items():
        if alias in names or module.ARCHITECTURES[(head,)] in classes:
            present.add(head)
    heads = tuple(head for head in known_heads(spec) if head in present)
    known = not classes or classes & set(module.ARCHITECTURES.values())
    pooled = any(path.startswith("encoder/pooler/") for path in found)
    pooled = pooled or not classifies_pooled(module.Config)
    if not known or not pooled:
        heads = tuple(head for head in heads if head != "classifier")
    return heads


def known_heads(spec: dict) -> tuple[str, ...]:
    """Every head that the family publishes, in the order of its names."""
    module = family(spec["family"])
    first = dict.fromkeys(ours.split("/")[0] for ours, _, _ in module.NAMES)
    first |= dict.fromkeys(getattr(module, "TIED_HEADS", ()))
    return tuple(name for name in first if name != "encoder")


def to_float32(tensor: np.ndarray, where: str) -> np.ndarray:
    """float16, bfloat16 and float32 as float32, exactly; FirthError for anything else."""
    if tensor.dtype.name not in ("float32", "float16", "bfloat16"):
        raise FirthError(f"{where} is {tensor.dtype.name}; expected float32, float16 or bfloat16")
    return tensor.astype(np.float32, copy=False)


def write_tensors(flat: dict, spec: dict, heads) -> dict[str, np.ndarray]:
    """{published name: array} as today's transformers names them; kernels are views."""
    module = family(spec["family"])
    tensors, done = {}, set()
    for name, row in name_table(spec, heads).items():
        if row.path in flat and row.path not in done:  # an alias comes after the name proper
            done.add(row.path)
            name = name if heads else name.removeprefix(module.PREFIX)
            tensors[name] = flat[row.path].T if row.transposed else flat[row.path]
    return tensors


def tensor_for(name: str, flat: dict, spec: dict, table: dict) -> np.ndarray | None:
    """What a file holds under a name that `read_tensors` understood; None where nothing fits."""
    name = canonical(name, spec, table)
    if buffers.named(name, spec):
        return buffers.value(name, spec)
    row = table.get(name)
    if row is None or row.path not in flat:
        return None
    return flat[row.path].T if row.transposed else flat[row.path]


# ----------------------------------------------------------------------------------- config


def read_config(config: dict, where: str) -> dict:
    """What a config.json describes: {spec, num_labels, labels, regression}.

    Raises FirthError for an unknown family, and for settings that Firth does not compute.
    """
    kind, kinds = config.get("model_type"), {MODEL_TYPES.get(name, name): name for name in FAMILIES}
    if not isinstance(kind, str) or kind not in kinds:
        raise FirthError(
            f"{where}: model_type {kind!r} is none that Firth reads ({', '.join(kinds)})"
        )
    name = kinds[kind]
    module = family(name)
    for key, value in module.FIXED.items():
        if config.get(key, value) not in (value, None):
            raise FirthError(f"{where}: {key}={config[key]!r} is not supported, only {value!r}")
    defaults = _defaults(name)
    spec = {"family": name} | {k: v for k, v in defaults.items() if k not in EXECUTION}
    for field, key in module.FIELDS.items():
        value = config.get(key)
        if value is None:
            value = spec["dropout"] if field == "classifier_dropout" else defaults[field]
        elif field == "activation":
            value = activations.read(value, module, f"{where}: {key}")
        check_field(value, defaults[field], f"{where}: {key}")
        spec[field] = value
    if hasattr(module, "from_published"):
        module.from_published(spec, config, where)
    num_labels, labels = _labels(config, where)
    problem = config.get("problem_type")
    regression = problem == "regression" or (problem is None and num_labels == 1)
    return dict(spec=spec, num_labels=num_labels, labels=labels, regression=regression)


def complete_spec(spec: dict, where: str) -> dict:
    """A model section read from a file with the family's defaults for what it leaves out.

    The fields that say how a model is run are dropped. Raises FirthError for an unusable value.
    """
    name = spec.get("family")
    if not isinstance(name, str) or name not in FAMILIES:
        raise FirthError(f"{where}: model.family={name!r}; Firth knows {', '.join(FAMILIES)}")
    defaults = _defaults(name)
    for field in spec.keys() & defaults.keys():
        default = 0 if field == "pad_id" else defaults[field]  # an id may be 0
        check_field(spec[field], default, f"{where}: model.{field}")
    return {k: v for k, v in (defaults | spec).items() if k not in EXECUTION}


def _defaults(name: str) -> dict:
    """{field: default} of a family's model section."""
    defaults = {f.name: f.default for f in dataclasses.fields(family(name).Config)}
    return defaults | {"classifier_dropout": 0.1}


def check_field(value, default, where: str):
    """Raise FirthError unless a value from a file has the type that its default has."""
    if type(default) is int:
        least, expected = (1, "a positive integer") if default else (0, "an integer from 0")
        good = type(value) is int and least <= value <= LARGEST
    elif type(default) is float:
        good = type(value) in (int, float) and math.isfinite(value) and value >= 0
        expected = "a number that is not negative"
    else:
        good, expected = type(value) is type(default), f"a {type(default).__name__}"
    if not good:
        raise FirthError(f"{where}={value!r}, expected {expected}")


def _labels(config: dict, where: str) -> tuple[int, tuple[str, ...] | None]:
    """Number of labels, and their names unless they are the meaningless LABEL_0, LABEL_1 ..."""
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)
        check_field(count, 2, f"{where}: num_labels")
        return count, None
    try:
        labels = tuple(str(names[str(i)]) for i in range(len(names)))
    except (KeyError, TypeError):
        raise FirthError(f"{where}: id2label must map 0 .. C-1 to names, not {names!r}") from None
    if not labels:
        raise FirthError(f"{where}: id2label is empty")
    return len(labels), None if labels == _default_labels(len(labels)) else labels


def _default_labels(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))


def write_config(saved, base: dict, pad_id: int | None) -> dict:
    """The config.json of a model (`firth.weights.read.Saved`); keys of `base` unknown here stay."""
    module = family(saved.spec["family"])
    width = saved.spec.get("embedding_size", 0)
    if width not in (0, saved.spec["hidden_size"]) and "embedding_size" not in module.FIELDS:
        raise FirthError(
            f"the published layout of {saved.spec['family']} has no place for embeddings {width} "
            f"wide under layers {saved.spec['hidden_size']} wide; keep it as a Firth directory"
        )
    config = dict(base)
    for key in ("dtype", "torch_dtype"):
        if key in config:
            config[key] = "float32"
    name = saved.spec["family"]
    config |= {"architectures": [architecture(saved)], "model_type": MODEL_TYPES.get(name, name)}
    spec = _defaults(name) | saved.spec
    for field, key in module.FIELDS.items():
        value = spec[field]
        if field == "activation":
            value = activations.write(value, module)
        config[key] = value
    if hasattr(module, "to_published"):
        module.to_published(config, spec)
    if "pad_token_id" not in module.FIELDS.values() and (
        pad_id is not None or "pad_token_id" not in config
    ):
        config["pad_token_id"] = pad_id or 0
    if "classifier" in saved.heads:
        labels = saved.labels or _default_labels(saved.num_labels)
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
        one_of = "regression" if saved.regression else "single_label_classification"
        config["problem_type"] = one_of
    return config


def unpublished(saved) -> list[str]:
    """Heads that the published layout of the family has no names for."""
    known = known_heads(saved.spec)
    return [head for head in saved.heads if head not in known]


def architecture(saved) -> str:
    """The class that transformers publishes such a model as."""
    classes = family(saved.spec["family"]).ARCHITECTURES
    if not classes:
        raise FirthError(
            f"there is no published layout for {saved.spec['family']}, which transformers does not "
            "have; keep it as a Firth directory or a workdir"
        )
    return next(name for heads, name in classes.items() if set(heads) <= set(saved.heads))
