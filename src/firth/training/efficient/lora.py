"""LoRA: instead of a kernel W, train two thin factors A and B of a change to it (Hu et al. 2021).

The model computes with W + alpha / r A B (section 4.1). The factors lie beside its parameters:

    encoder/stack/layer_0/attention/query/kernel         W [inputs, outputs]; it stays as it is
    lora/encoder/stack/layer_0/attention/query/kernel/a  A [inputs, r]
    lora/encoder/stack/layer_0/attention/query/kernel/b  B [r, outputs]
    lora/scale                                           alpha / r

`merge` makes the model's own parameters of both, so that no model knows of the factors, and a
checkpoint says all that is needed. A kernel of three axes is a matrix from its first axis to the
others. One that a scan has stacked has factors for each layer.
"""

import dataclasses
import difflib
import math
import re

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from firth.errors import FirthError
from firth.training.unfreezing.depth import is_stacked

KEY = "lora"
# Bodies, which do not move; heads are trained. The scale is a number and no parameter.
FROZEN = ("^(encoder|generator|teacher)/", f"^{KEY}/scale$")


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which kernels have factors.

    rank: r. alpha: alpha / r multiplies the product of the factors. targets: a regular expression
    on the paths of the body's parameters; vectors are never meant.
    """

    rank: int
    alpha: float
    targets: str

    def __post_init__(self):
        if self.rank < 1:
            raise FirthError(f"lora.rank={self.rank}: expected 1 or more, or 0 for no LoRA")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise FirthError(f"lora.alpha={self.alpha}: expected a number above 0")
        try:
            re.compile(self.targets)
        except re.error as error:
            raise FirthError(
                f"lora.targets={self.targets!r} is not a regular expression ({error})"
            ) from None

    def chosen(self, shapes: dict) -> dict[str, tuple[int, int, int]]:
        """{path: (layers stacked in it, inputs, outputs)} of the kernels that have factors.

        `shapes` is {path: leaf} of a model's parameters. Raises FirthError, naming the nearest
        paths, if no kernel matches, and for a rank above that of a kernel.
        """
        sizes = {path: _sizes(path, leaf.shape) for path, leaf in shapes.items()}
        kernels = {
            p: size for p, size in sorted(sizes.items()) if size and p.startswith("encoder/")
        }
        found = {path: size for path, size in kernels.items() if re.search(self.targets, path)}
        if not found:
            raise FirthError(
                f"lora.targets={self.targets!r} matches no kernel of this model; near it are "
                f"{', '.join(nearest(self.targets, kernels))}"
            )
        for path, (_, inputs, outputs) in found.items():
            if self.rank > min(inputs, outputs):
                raise FirthError(
                    f"lora.rank={self.rank} is above the rank of {path}, which is {inputs} x "
                    f"{outputs}; give less, or other lora.targets"
                )
        return found

    def attach(self, params: dict, key) -> dict:
        """The parameters with factors beside them: A is uniform, as in the released code, B zero.

        A is within 1 / sqrt(inputs), so that the model is at first the one without factors. Raises
        FirthError as `chosen` does.
        """
        factors = {}
        for number, (path, sizes) in enumerate(self.chosen(flatten_dict(params, sep="/")).items()):
            layers, inputs, outputs = sizes
            stack = (layers,) if layers else ()
            bound = inputs**-0.5
            drawn = jax.random.fold_in(key, number)
            shape = (*stack, inputs, self.rank)
            factors[f"{path}/a"] = jax.random.uniform(drawn, shape, minval=-bound, maxval=bound)
            factors[f"{path}/b"] = jnp.zeros((*stack, self.rank, outputs))
        factors["scale"] = jnp.asarray(self.alpha / self.rank, jnp.float32)
        return params | {KEY: unflatten_dict(factors, sep="/")}


def read_lora(config) -> Lora | None:
    """The `lora` section of a config, or None without it and with `rank` 0.

    Raises FirthError for a rank below 0, an alpha that is not above 0 and a bad expression.
    """
    fields = dict(config.get(KEY, {}))
    return Lora(**fields) if fields.get("rank") else None


def merge(params: dict) -> dict:
    """The model's own parameters, with the products of the factors in them, if there are any."""
    if KEY not in params:
        return params
    flat = flatten_dict({name: tree for name, tree in params.items() if name != KEY}, sep="/")
    factors = flatten_dict(params[KEY], sep="/")
    for name, a in factors.items():
        path, _, part = name.rpartition("/")
        if part == "a":
            change = factors["scale"] * (a @ factors[f"{path}/b"])
            flat[path] = flat[path] + change.reshape(flat[path].shape)
    return unflatten_dict(flat, sep="/")


def nearest(pattern: str, paths, most: int = 3) -> list[str]:
    """The paths, one of each kind, that look most like an expression."""
    kinds = {re.sub(r"\d+", "#", path): path for path in reversed(list(paths))}
    words = re.findall(r"\w+", pattern)

    def likeness(path):
        parts = re.split(r"\W+", path)
        return sum(
            max(difflib.SequenceMatcher(None, word, part).ratio() for part in parts)
            for word in words
        )

    return sorted(kinds.values(), key=likeness, reverse=True)[:most]


def _sizes(path: str, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(layers or 0, inputs, outputs) of a kernel; None for a vector."""
    layers, own = (shape[0], shape[1:]) if is_stacked(path) else (0, shape)
    return (layers, own[0], math.prod(own[1:])) if len(own) > 1 else None
