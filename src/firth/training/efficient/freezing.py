"""Which parameters a run leaves as they are: without a gradient, a moment, a decay or a change.

    --config.freeze=embeddings,0-3      the embeddings and the lowest four layers
    --config.freeze='encoder,!bias$'    the body but its biases (BitFit, Ben Zaken et al. 2021)

Each item between commas is `encoder` (the body), `embeddings`, a layer or a range of layers from 0
at the bottom, or a regular expression on the paths of parameters. With a `!` before it, what it
names is trained in spite of the others.
"""

import dataclasses
import re

import jax

from firth.errors import FirthError
from firth.training import optim
from firth.training.efficient import lora

# Factors of LoRA go with their kernels.
BODY = f"^({lora.KEY}/)?encoder/"
NAMES = {"encoder": BODY, "embeddings": BODY + "(?!stack/|pooler/|final_norm/)"}


@dataclasses.dataclass(frozen=True)
class Freezing:
    """Expressions on the paths of parameters.

    patterns: what they match is frozen. but: unless one of these matches it. items: the expressions
    of each item of the config's `freeze`, by how it is written there.
    """

    patterns: tuple[str, ...] = ()
    but: tuple[str, ...] = ()
    items: tuple[tuple[str, str], ...] = ()

    def mask(self, params):
        """Tree of bool: is the parameter frozen?"""
        return optim.path_mask(self.patterns, but=self.but)(params)

    def check(self, params) -> None:
        """Raise FirthError for an item that matches no parameter of a tree, or if none is left.

        The message says what to write instead.
        """
        paths = optim.named_leaves(params)
        for item, pattern in self.items:
            if not any(re.search(pattern, path) for path in paths):
                raise FirthError(f"freeze: {_unmatched(item, paths)}")
        if self.items and all(jax.tree.leaves(self.mask(params))):
            raise FirthError("freeze: every parameter is frozen; nothing would be trained")


def read_freezing(config, objective=(), fresh=()) -> Freezing:
    """What a run freezes: by its `freeze`, `optimizer.freeze`, `lora`, and by its objective.

    `objective` holds expressions of the objective, `fresh` those of parameters that are trained in
    any case. Raises FirthError for an item that cannot be read.
    """
    written = [item.strip() for item in config.get("freeze", "").split(",") if item.strip()]
    items = [pair for item in written for pair in _expressions(item)]
    adapted = lora.FROZEN if lora.read_lora(config) else ()
    every = (pattern for _, pattern in items)  # those with a `!` too, which are excepted below
    return Freezing(
        (*optim.frozen_patterns(config.optimizer, objective), *adapted, *every),
        (*fresh, *(pattern for item, pattern in items if item.startswith("!"))),
        tuple(items),
    )


def _expressions(item: str) -> list[tuple[str, str]]:
    """(item, expression) pairs of one item; a range has one for each layer."""
    sign, name = ("!", item[1:]) if item.startswith("!") else ("", item)
    if found := re.fullmatch(r"(\d+)(?:-(\d+))?", name):
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise FirthError(f"freeze={item!r}: a range of layers goes up, as in 0-3")
        return [(f"{sign}{n}", f"{BODY}(.*/)?layer_{n}/") for n in range(first, last + 1)]
    pattern = NAMES.get(name, name)
    try:
        re.compile(pattern)
    except re.error as error:
        raise FirthError(f"freeze={item!r} is not a regular expression ({error})") from None
    return [(item, pattern)]


def _unmatched(item: str, paths: list[str]) -> str:
    """Why an item matches nothing, and what there is."""
    name = item.removeprefix("!")
    if not name.isdecimal():
        return f"{item!r} matches no parameter; near it are {', '.join(lora.nearest(name, paths))}"
    layers = {int(n) for path in paths for n in re.findall(r"/layer_(\d+)/", path)}
    if any("/layers/" in path for path in paths):
        return f"layer {name} has no parameters of its own; set model.scan=False"
    if not layers:
        return f"layer {name} is not there: this body has no layers of its own"
    return f"layer {name} is not there: this body has layers {min(layers)} to {max(layers)}"
