"""Floating-point operations of a run, by closed formula.

Counted are the matrix products of the train step as Firth computes it, 2 m n k each, forward and
backward: an affine map has two products of its size in the backward pass. Not counted is what does
not grow with the product of two widths: embeddings (lookups), norms, activations, softmax, dropout,
the optimiser; and what rematerialisation computes again (`recomputed`), since the utilisation (MFU)
is by definition that of the model's own operations. Masks save nothing: a causal or a local
attention computes all its scores and hides some. What `optimizer.freeze` names is counted as if it
were trained.

B rows, L length, P predicted positions a row, M memory, J = M + L keys, R relative positions,
D width, E width of the embeddings, F MLP width, V vocabulary, N layers.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

from firth.errors import FirthError
from firth.models import bert, gpt, modernbert, xlnet
from firth.objectives.clm import CausalLM
from firth.objectives.distill import Distill
from firth.objectives.mlm import MaskedLM
from firth.objectives.plm import PermutationLM
from firth.objectives.rtd import ReplacedTokens

EMBEDDINGS, PROJECTIONS, MLP = "embeddings", "attention projections", "MLP"
PRODUCTS, LOCAL = "attention products", "local attention products"
RECOMPUTED = {  # by the policies of `layers.transformer.REMAT_POLICIES`
    "none": (),
    "all_dots": (),
    "dots": (PRODUCTS, LOCAL),
    "full": (PROJECTIONS, PRODUCTS, LOCAL, MLP),
}


class Product(NamedTuple):
    """Matrix products of a kind in one update.

    part: of the model. forward: FLOPs of the forward pass. backward: how many products of the same
    size the backward pass has. owner: "" for the model that is trained, or the second model's role.
    needed: whether the backward pass needs the result, and rematerialisation computes it again.
    """

    part: str
    forward: int
    backward: int = 2
    owner: str = ""
    needed: bool = True


def update_flops(outline) -> dict[str, int]:
    """FLOPs of one update, forward and backward, {part: number}; their sum is the model's FLOPs.

    The parts of a second model are named after its role, "generator MLP".
    """
    parts = {}
    for product in products(outline):
        name = f"{product.owner} {product.part}".strip()
        parts[name] = parts.get(name, 0) + product.forward * (1 + product.backward)
    return parts


def recomputed(outline) -> int:
    """FLOPs that one update spends again on the forward pass of its layers (`model.remat`)."""
    again = RECOMPUTED[outline.model.encoder.config.remat]
    return sum(p.forward for p in products(outline) if p.part in again and p.backward and p.needed)


def products(outline) -> Iterator[Product]:
    """All matrix products of one update of an outline."""
    rows, length = outline.batch["tokens"].shape
    given = dict(rows=rows, length=length, micro=outline.config.accumulate)
    yield from learned(outline.objective, outline.model, **given)


# ------------------------------------------------------------------------------- objectives


@functools.singledispatch
def learned(objective, model, *, rows, length, micro) -> Iterator[Product]:
    """The products of an objective's losses, on so many rows in `micro` micro-batches."""
    raise FirthError(f"no formula counts the FLOPs of objective {type(objective).__name__}")


@learned.register
def _(objective: MaskedLM, model, *, rows, length, micro):
    c = model.encoder.config
    yield from body(c, rows=rows, length=length, micro=micro)
    yield _mlm(c, rows * min(objective.max_predictions, length))
    if objective.pairs != "none":
        yield Product("pooler", 2 * rows * c.hidden_size**2)
        yield Product(objective.pairs, 2 * rows * c.hidden_size * 2)


@learned.register
def _(objective: CausalLM, model, *, rows, length, micro):
    c = model.encoder.config
    shape = dict(rows=rows, length=length, micro=micro)
    yield from body(c, memory=objective.memory, **shape) if objective.memory else body(c, **shape)
    yield _lm(c, rows * length)


@learned.register
def _(objective: PermutationLM, model, *, rows, length, micro):
    c, predicted = model.encoder.config, objective.max_predictions
    yield from relative(
        c,
        rows=rows,
        length=length,
        micro=micro,
        memory=objective.memory,
        predicted=predicted,
        directions=1 + objective.backwards,
    )
    yield _lm(c, rows * predicted)


@learned.register
def _(objective: ReplacedTokens, model, *, rows, length, micro):
    c, shape = model.encoder.config, dict(rows=rows, length=length, micro=micro)
    predicted = rows * min(objective.masked.max_predictions, length)
    g = model.generator.encoder.config if model.generator else c
    scored = c.embedding_width if model.tied else g.embedding_width
    backward = 0 if objective.trained else 2
    for product in (*body(g, embedded=scored, **shape), _mlm(g, predicted, scored)):
        yield product._replace(owner="generator", backward=min(product.backward, backward))
    yield from body(c, **shape)
    tokens = rows * length
    if objective.variant in ("electra", "electra_15"):
        yield Product("rtd", 2 * tokens * c.hidden_size * (c.hidden_size + 1))
    elif objective.variant == "replace_mlm":
        yield _mlm(c, predicted)
    else:
        yield _mlm(c, tokens)
        yield Product("copy", 2 * tokens * c.hidden_size)


@learned.register
def _(objective: Distill, model, *, rows, length, micro):
    c, shape = model.encoder.config, dict(rows=rows, length=length, micro=micro)
    t = model.teacher.encoder.config
    tokens, predicted = rows * length, rows * min(objective.masked.max_predictions, length)
    yield from body(c, **shape)
    yield _mlm(c, predicted if objective.masked_only else predicted + tokens)
    if "bridge" in objective.heads:
        yield Product("bridge", 2 * tokens * c.hidden_size * t.hidden_size)
    for product in (*body(t, **shape), _mlm(t, predicted if objective.masked_only else tokens)):
        yield product._replace(owner="teacher", backward=0)


def _mlm(c, positions: int, scored: int = 0) -> Product:
    """The masked LM head at so many positions, against a table `scored` wide (the config's)."""
    width = scored or c.embedding_width
    return Product("mlm", 2 * positions * width * (c.hidden_size + c.vocab_size))


def _lm(c, positions: int) -> Product:
    words = c.vocab_size + (c.max_length if getattr(c, "softmax_over_all", False) else 0)
    return Product("lm", 2 * positions * c.hidden_size * words)


# ----------------------------------------------------------------------------------- bodies


@functools.singledispatch
def body(config, *, rows, length, micro=1, embedded=0) -> Iterator[Product]:
    """The products of an encoder of this config over full rows; `embedded`: E where it is not its
    own (a generator on its discriminator's embeddings).
    """
    raise FirthError(f"no formula counts the FLOPs of {type(config).__module__}")


@body.register(bert.Config)
@body.register(gpt.Config)
def transformer(c, *, rows, length, micro=1, embedded=0, gates=1):
    """Softmax attention and an MLP whose first map is `gates` times F wide.

    Where norms come first, a layer ends with a sum, which needs no result of the MLP's second map.
    """
    tokens, D = rows * length, c.hidden_size
    layers = c.num_layers * getattr(c, "inner_layers", 1)
    widths, pre_norm = 2 * tokens * D * c.intermediate_size, getattr(c, "pre_norm", False)
    if getattr(c, "projects", False):
        yield Product(EMBEDDINGS, 2 * tokens * (embedded or c.embedding_width) * D)
    yield Product(PROJECTIONS, layers * 2 * tokens * 4 * D**2)
    yield Product(PRODUCTS, layers * 2 * tokens * 2 * length * D)
    yield Product(MLP, layers * gates * widths)
    yield Product(MLP, layers * widths, needed=not pre_norm)


@body.register
def _(c: modernbert.Config, **shape):
    """GeGLU's first map is twice as wide. Local layers compute all scores, as global ones do."""
    everywhere = -(-c.num_layers // c.global_every)
    for product in transformer(c, gates=2, **shape):
        if product.part != PRODUCTS:
            yield product
            continue
        layer = product.forward // c.num_layers
        yield product._replace(forward=everywhere * layer)
        yield product._replace(part=LOCAL, forward=(c.num_layers - everywhere) * layer)


@body.register
def relative(
    c: xlnet.Config, *, rows, length, micro=1, embedded=0, memory=0, predicted=0, directions=1
):
    """Relative attention over memory, of a content and (`predicted` > 0) a query stream.

    The encodings of the distances are constants, so their projection has one product in the
    backward pass; it is the same for all rows of a micro-batch, once a direction. The last layer's
    content stream is what nobody reads where only the query stream predicts: its keys and values
    alone are computed (layers that are scanned compute it all; `scan` is counted so).
    """
    D, F, N, J = c.hidden_size, c.intermediate_size, c.num_layers, memory + length
    R = J + (1 if c.causal else length)
    wide = R + 2 * J + (2 if c.segments else 0)  # scores by distance, by content; values; segments
    content = N - 1 if predicted and not c.scan else N
    streams = rows * (content * length + N * predicted)
    yield Product(PROJECTIONS, 2 * D**2 * (2 * N * rows * J + 2 * streams))
    yield Product(PROJECTIONS, 2 * D**2 * N * micro * directions * R, backward=1)
    yield Product(PRODUCTS, 2 * D * wide * streams)
    yield Product(MLP, 2 * 2 * D * F * streams)
