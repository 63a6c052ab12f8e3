"""Tensors of published files that are not parameters: position ids and causal masks.

`Published.buffers` of a family lists their names, with {i} for a number. The last part of the name
and the number of positions determine their values, so Firth checks them and makes them anew.
"""

import dataclasses
import re

import numpy as np

from firth.errors import FirthError
from firth.models.model import family

# last part of the name -> (shape, value, value in words), each for n positions
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
    pattern = re.sub(r"(?<=\.)\d+(?=\.)", "{i}", name)
    return pattern in family(spec["family"]).PUBLISHED.buffers


def value(name: str, spec: dict) -> np.ndarray:
    """The value of a buffer."""
    return KINDS[name.split(".")[-1]][1](_positions(spec))


def check(name: str, tensor: np.ndarray, spec: dict, where):
    """Raise FirthError unless `tensor` has the value of the buffer."""
    shape, _, words = KINDS[name.split(".")[-1]]
    rows = _positions(spec)
    # The shape comes first: a file may claim a max_length whose buffer does not fit into memory.
    if tensor.shape != shape(rows) or not np.array_equal(
        tensor, value(name, spec).astype(tensor.dtype)
    ):
        expected = words.format(n=rows, last=rows - 1)
        raise FirthError(f"{where}: {name} is not {expected}, as it always is")


def _positions(spec: dict) -> int:
    """Rows of the position table."""
    module = family(spec["family"])
    fields = {f.name for f in dataclasses.fields(module.Config)}
    config = module.Config(**{name: spec[name] for name in fields & spec.keys()})
    return config.first_position + config.max_length
