"""Tensor names of the published (Hugging Face) form, and the parameters that they stand for.

Parameters are flat here: {path: array}, a path being the names in the tree joined by slashes, as in
"encoder/word/embedding". `Published` of each family (`firth.models.published`) lists the names.
"""

import contextlib
import dataclasses
import functools
import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from firth.errors import FirthError
from firth.models.heads import classifies_pooled
from firth.models.model import create, family, to_layout
from firth.weights import buffers
from firth.weights.description import Description

# kind of module -> (last part of the path, last part of the published name, whether the published
# tensor is the parameter transposed)
LEAVES = {
    "dense": (("kernel", "weight", True), ("bias", "bias", False)),
    "norm": (("scale", "weight", False), ("bias", "bias", False)),
    "embed": (("embedding", "weight", False),),
    "bias": (("bias", "bias", False),),
    "kernel": (("kernel", "weight", True),),  # a dense layer without bias
    "scale": (("scale", "weight", False),),  # a norm without bias
    "raw": (("", "", False),),  # a single tensor, without a module
    "conv": (("kernel", "weight", False), ("bias", "bias", False)),  # GPT's dense layer
}
OLD_NAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))  # LayerNorm in converted TF models


class Row(NamedTuple):
    """The parameter of a published tensor: its path, and whether the tensor is its transpose."""

    path: str
    transposed: bool


def name_table(spec: dict, present) -> dict[str, Row]:
    """{published name: Row} of every tensor that a model of this size may have, tied ones included.

    `present` holds heads, or published names and classes. It selects among the family's
    `exclusive_heads`.
    """
    published = family(spec["family"]).PUBLISHED
    modules = (*published.modules, *published.tied)
    for head, other, sign in published.exclusive_heads:
        absent = other if head in present or sign in present else head
        modules = [module for module in modules if module[0].split("/")[0] != absent]
    counts = {letter: range(spec[field]) for letter, field in published.indices.items()}
    table = {}
    for module_path, module_name, kind in modules:
        letters = [letter for letter in counts if f"{{{letter}}}" in module_path]
        for numbers in itertools.product(*(counts[letter] for letter in letters)):
            index = dict(zip(letters, numbers, strict=True))
            for path_leaf, name_leaf, transposed in LEAVES[kind]:
                name = ".".join(filter(None, (module_name.format(**index), name_leaf)))
                path = "/".join(filter(None, (module_path.format(**index), path_leaf)))
                table[name] = Row(path, transposed)
    return table


def canonical(name: str, spec: dict, table: dict) -> str:
    """A published name as the table spells it: with the prefix, without gamma and beta."""
    for pattern, replacement in OLD_NAMES:
        name = re.sub(pattern, replacement, name)
    prefixed = family(spec["family"]).PUBLISHED.prefix + name
    return prefixed if prefixed in table or buffers.named(prefixed, spec) else name


def check_params(flat: dict, description: Description, where, names: dict | None = None):
    """Raise FirthError unless flat parameters are exactly those of the described model.

    `names` is {path: name in the file} for the messages.
    """
    names = names or {}
    spec = description.spec
    check_depth(spec, len(flat), where)
    expected = _shapes(_model(description, len(flat), where))
    if missing := [names.get(path, path) for path in expected if path not in flat]:
        raise FirthError(f"{where} lacks {len(missing)} of its tensors: {listed(missing)}")
    if surplus := [path for path in flat if path not in expected]:
        raise FirthError(f"{where} holds tensors that the model has not: {listed(surplus)}")
    wrong = [
        f"{names.get(path, path)} is {list(flat[path].shape)}, expected {list(leaf.shape)}"
        for path, leaf in expected.items()
        if flat[path].shape != leaf.shape
    ]
    if wrong:
        raise FirthError(f"{where} does not fit its description: {listed(wrong)}")


@functools.lru_cache(maxsize=32)
def _shapes(model) -> dict[str, jax.ShapeDtypeStruct]:
    """{path: shape} of a model's parameters, layers unrolled.

    They come from `eval_shape`, which allocates nothing: a file may claim any size.
    """

    def init(key):
        return to_layout(model.init(key, jnp.zeros((1, 1), jnp.int32))["params"], scan=False)

    return flatten_dict(jax.eval_shape(init, jax.random.key(0)), sep="/")


def _model(description: Description, tensors: int, where):
    """The described model; its layers are traced once, unless they have different shapes."""
    build = functools.partial(
        create,
        heads=description.heads,
        num_labels=description.num_labels,
        tasks=description.outputs,
    )
    spec = description.spec
    with contextlib.suppress(FirthError):
        return build(spec | {"scan": True})
    if spec.get("num_layers", 0) > tensors:
        raise FirthError(
            f"{where} holds {tensors} tensors, too few for num_layers={spec['num_layers']}"
        )
    try:
        return build(spec)
    except FirthError as error:
        raise FirthError(f"{where}: {error}") from None


def check_depth(spec: dict, tensors: int, where):
    """Raise FirthError for more layers than tensors, before any loop over the layers."""
    for field in family(spec["family"]).PUBLISHED.indices.values():
        if spec[field] > tensors:
            raise FirthError(f"{where} holds {tensors} tensors, too few for {field}={spec[field]}")


def listed(names, most: int = 8) -> str:
    """'a, b, c, ... (12 more)'."""
    names = list(names)
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def read_tensors(tensors: dict, description: Description, config: dict, where):
    """Turn published tensors into parameters.

    Args:
      tensors: {published name: array}.
      description: from `read_config`, which knows neither the heads nor whether there is a pooler.
      config: the content of config.json.
      where: what error messages call the file.

    Returns:
      (the complete description, {path: float32 array}, sorted names of tensors that have no place
      in the model).
    Raises FirthError for missing tensors, wrong shapes, other dtypes and untied copies.
    """
    spec = description.spec
    check_depth(spec, len(tensors), where)
    table = name_table(spec, {*tensors, *_classes(config)})
    flat, names, unused = {}, {}, []  # names: {path: name in the file}
    for name, tensor in tensors.items():
        known_as = canonical(name, spec, table)
        row = table.get(known_as)
        if row is None:
            if buffers.named(known_as, spec):
                buffers.check(name, tensor, spec, where)
            else:
                unused.append(name)
            continue
        array = to_float32(tensor, f"{where}: {name}")
        array = array.T if row.transposed else array
        if row.path in flat and not np.array_equal(array, flat[row.path], equal_nan=True):
            raise FirthError(
                f"{where}: {name} differs from {names[row.path]}; Firth ties the two, "
                "so untied weights cannot be represented"
            )
        flat.setdefault(row.path, array)
        names.setdefault(row.path, name)

    heads = _heads(flat, tensors, spec, config)
    for path in [p for p in flat if p.split("/")[0] not in ("encoder", *heads)]:
        unused.append(names[path])
        del flat[path]
    if "pooler" in spec:
        spec = spec | {"pooler": _has_pooler(flat) or bool({"nsp", "sop"} & set(heads))}
    description = dataclasses.replace(
        description,
        spec=spec,
        heads=heads,
        regression=description.regression and "classifier" in heads,
        multilabel=description.multilabel and "classifier" in heads,
    )
    usual = {row.path: name for name, row in reversed(table.items())}
    check_params(flat, description, where, usual | names)
    return description, flat, sorted(unused)


def _heads(flat: dict, tensors, spec: dict, config: dict) -> tuple[str, ...]:
    """Heads whose parameters are in `flat`, and parameterless ones of the class in config.json.

    Classes for other tasks (tagging, for instance) also call their head `classifier`. Only a class
    of the family's `architectures`, with a pooler where the classifier needs one, classifies texts.
    """
    module = family(spec["family"])
    published = module.PUBLISHED
    classes = _classes(config)
    present = {path.split("/")[0] for path in flat}
    for head, name in published.parameterless_heads.items():
        if name in tensors or published.architectures[(head,)] in classes:
            present.add(head)
    if classes and not classes & set(published.architectures.values()):
        present.discard("classifier")
    if classifies_pooled(module.Config) and not _has_pooler(flat):
        present -= {"classifier", "choice"}
    return tuple(head for head in published_heads(spec) if head in present)


def _classes(config: dict) -> set[str]:
    """The classes of transformers that a config.json names."""
    classes = config.get("architectures")
    return set(map(str, classes)) if isinstance(classes, list) else set()


def _has_pooler(flat: dict) -> bool:
    return any(path.startswith("encoder/pooler/") for path in flat)


def published_heads(spec: dict) -> tuple[str, ...]:
    """Every head that the family publishes, in the order of its modules."""
    published = family(spec["family"]).PUBLISHED
    heads = dict.fromkeys(path.split("/")[0] for path, _, _ in published.modules)
    heads |= dict.fromkeys(published.parameterless_heads)
    return tuple(head for head in heads if head != "encoder")


def to_float32(tensor: np.ndarray, where: str) -> np.ndarray:
    """float16, bfloat16 and float32 as float32, exactly; FirthError for any other dtype."""
    if tensor.dtype.name not in ("float32", "float16", "bfloat16"):
        raise FirthError(f"{where} is {tensor.dtype.name}; expected float32, float16 or bfloat16")
    return tensor.astype(np.float32, copy=False)


def write_tensors(flat: dict, spec: dict, heads) -> dict[str, np.ndarray]:
    """{published name: array} as current transformers names them. Transposed kernels are views."""
    prefix = family(spec["family"]).PUBLISHED.prefix
    tensors, written = {}, set()
    for name, row in name_table(spec, heads).items():
        if row.path in flat and row.path not in written:  # the table lists tied names last
            written.add(row.path)
            name = name if heads else name.removeprefix(prefix)
            tensors[name] = flat[row.path].T if row.transposed else flat[row.path]
    return tensors


def tensor_for(name: str, flat: dict, spec: dict, table: dict) -> np.ndarray | None:
    """The tensor of a published name in any spelling that `read_tensors` reads, or None."""
    name = canonical(name, spec, table)
    if buffers.named(name, spec):
        return buffers.value(name, spec)
    row = table.get(name)
    if row is None or row.path not in flat:
        return None
    return flat[row.path].T if row.transposed else flat[row.path]
