"""Tensors of published files that are no parameters: nothing in them is learned.

A family's BUFFERS lists their names, {i} standing for a number. What they hold follows from the
last part of the name and from the rows of the position table.
"""

import dataclasses
import re

import numpy as np

from firth.errors import FirthError
from firth.models.model import family

# last part of the name -> (shape for n rows, value for n rows, the value in words)
KINDS = {
    "position_ids": (lambda n: (1, n), lambda n: np.arange(n)[None], "0 .. {last}"),
    "bias": (
        lambda n: (1, 1, n, n),
        lambda n: np.tri(n, dtype=np.float32)[None, None],
        "the causal mask of {n} positions",
    ),
    "masked_bias": (lambda n: (), lambda n: np.array(-1e4, np.float32), "-10000"),
}


def named(name: str, spec: dict) -> bool:
    """Whether this published name is that of a buffer."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "{i}", name) in family(spec["family"]).BUFFERS


def value(name: str, spec: dict) -> np.ndarray:
    """What the buffer holds."""
    return KINDS[name.split(".")[-1]][1](_positions(spec))


def check(name: str, tensor: np.ndarray, spec: dict, where):
    """Raise FirthError unless `tensor` is what the buffer holds."""
    shape, _, words = KINDS[name.split(".")[-1]]
    rows = _positions(spec)
    # The shape first: a claimed max_length may be too large to make the value at all.
    if tensor.shape != shape(rows) or not np.array_equal(
        tensor, value(name, spec).astype(tensor.dtype)
    ):
        held = words.format(n=rows, last=rows - 1)
        raise FirthError(f"{where}: {name} is not {held}, as it always is")


def _positions(spec: dict) -> int:
    """Rows of the position table."""
    module = family(spec["family"])
    fields = {f.name for f in dataclasses.fields(module.Config)}
    config = module.Config(**{name: spec[name] for name in fields & spec.keys()})
    return config.first_position + config.max_length
