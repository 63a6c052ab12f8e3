"""Matrix products of a step by closed formula, for the floating-point operations of a run.

Each product counts 2 m n k, forward and backward: an affine map has two products of its size in the
backward pass. The count leaves out all that does not grow with the product of two widths:
embeddings (lookups), norms, activations, softmax, dropout, the optimiser. Masks save nothing:
causal or local attention computes all its scores and hides some.

B rows, L length, P predicted positions a row, M memory, J = M + L keys, R relative positions,
D width, E width of the embeddings, F MLP width, V vocabulary, N layers.
"""

from collections.abc import Iterator
from typing import NamedTuple

from firth.layers.transformer import reads_places

EMBEDDINGS, PROJECTIONS, MLP = "embeddings", "attention projections", "MLP"
PRODUCTS, LOCAL = "attention products", "local attention products"
INPUTS, RECURRENT = "input products", "recurrent products"


class Product(NamedTuple):
    """Matrix products of a kind in one update.

    part: of the model. forward: FLOPs of the forward pass. backward: how many products of the same
    size the backward pass has. owner: "" for the model that is trained, or the second model's role.
    needed: whether the backward pass needs the result, so that rematerialisation repeats it.
    """

    part: str
    forward: int
    backward: int = 2
    owner: str = ""
    needed: bool = True


def of_body(body, *, read: int, **shape) -> Iterator[Product]:
    """Those of a body that is read at so many places of a row, by the formula of its Config."""
    places = {"places": read} if reads_places(body) else {}
    return body.config.products(**shape, **places)


def transformer(
    c, *, rows, length, micro=1, embedded=0, gates=1, places=0, own=2
) -> Iterator[Product]:
    """Softmax attention and an MLP whose first map is `gates` times F wide, over full rows.

    Args:
      c: the config of a body.
      rows, length: of a batch.
      micro: micro-batches of an update.
      embedded: E, where it is not the body's own (a generator on its discriminator's embeddings).
      gates: 2 where half of the first map gates the other half.
      places: of each row, where the last layer is computed alone; 0: everywhere.
      own: how many of the four projections are of these places then.

    Pre-norm layers end with a sum, which needs no result of the MLP's second map.
    """
    del micro
    tokens, D = rows * length, c.hidden_size
    saved = rows * (length - places) if places else 0  # tokens that the last layer leaves out
    layers = c.num_layers * getattr(c, "inner_layers", 1)
    inputs, pre_norm = layers * tokens - saved, getattr(c, "pre_norm", False)
    widths = 2 * inputs * D * c.intermediate_size
    if getattr(c, "projects", False):
        yield Product(EMBEDDINGS, 2 * tokens * (embedded or c.embedding_width) * D)
    yield Product(PROJECTIONS, 2 * (layers * tokens * 4 - saved * own) * D**2)
    yield Product(PRODUCTS, 2 * inputs * 2 * length * D)
    yield Product(MLP, gates * widths)
    yield Product(MLP, widths, needed=not pre_norm)


def with_local_layers(c, **shape) -> Iterator[Product]:
    """A body with GeGLU and local attention in all but every `global_every`th layer.

    Local layers compute all scores, as global ones do.
    """
    everywhere = -(-c.num_layers // c.global_every)
    for product in transformer(c, gates=2, own=1, **shape):
        if product.part != PRODUCTS:
            yield product
            continue
        layer = 2 * shape["rows"] * shape["length"] * 2 * shape["length"] * c.hidden_size
        saved = c.num_layers * layer - product.forward  # of the last layer
        last_is_local = (c.num_layers - 1) % c.global_every > 0
        local = (c.num_layers - everywhere) * layer - saved * last_is_local
        yield product._replace(forward=product.forward - local)
        yield product._replace(part=LOCAL, forward=local)


def relative(
    c, *, rows, length, micro=1, embedded=0, memory=0, predicted=0, directions=1
) -> Iterator[Product]:
    """Relative attention over memory, of a content and (`predicted` > 0) a query stream.

    The encodings of the distances are constants, so their projection has one product in the
    backward pass. It is the same for all rows of a micro-batch, once a direction. Where only the
    query stream predicts, nothing reads the last layer's content stream: unrolled layers compute
    its keys and values alone, scanned layers all of it.
    """
    del embedded
    D, F, N, J = c.hidden_size, c.intermediate_size, c.num_layers, memory + length
    R = J + (1 if c.causal else length)
    wide = R + 2 * J + (2 if c.segments else 0)  # scores by distance, by content; values; segments
    content = N - 1 if predicted and not c.scan else N
    streams = rows * (content * length + N * predicted)
    yield Product(PROJECTIONS, 2 * D**2 * (2 * N * rows * J + 2 * streams))
    yield Product(PROJECTIONS, 2 * D**2 * N * micro * directions * R, backward=1)
    yield Product(PRODUCTS, 2 * D * wide * streams)
    yield Product(MLP, 2 * 2 * D * F * streams)


def recurrent(c, *, rows, length, micro=1) -> Iterator[Product]:
    """Recurrent layers: the products of all their inputs, and those of h in every step."""
    del micro
    tokens, D = rows * length, c.widths[-1]
    if c.projects_input:
        pairs = zip((c.embedding_width, *c.widths), c.widths, strict=False)
        yield Product(INPUTS, 2 * tokens * c.gates * sum(below * own for below, own in pairs))
    yield Product(RECURRENT, 2 * tokens * c.gates * sum(width**2 for width in c.widths))
    if c.tied_softmax and c.embedding_width != D:
        yield Product("down-projection", 2 * tokens * D * c.embedding_width)


def spelt(c, *, rows, length, micro=1) -> Iterator[Product]:
    """A character CNN over the words of a batch, or over the vocabulary if smaller; an LSTM."""
    words, places = min(rows * length // micro, c.vocab_size) * micro, c.spellings[0].shape[1]
    windows = sum((places - w + 1) * w * number for w, number in c.filters)
    yield Product("filters", 2 * words * windows * c.character_size)
    yield Product("highways", 2 * words * c.highways * 2 * c.embedding_width**2)
    yield from recurrent(c, rows=rows, length=length, micro=micro)


def highway(c, *, rows, length, micro=1) -> Iterator[Product]:
    """A recurrent layer of two gates: products of its inputs, `depth` of its state in a step."""
    del micro
    gates = 2 * rows * length * 2 * c.hidden_size**2
    yield Product(INPUTS, gates)
    yield Product(RECURRENT, c.depth * gates)


def windows(c, *, rows, length, micro=1) -> Iterator[Product]:
    """Hidden units over the embeddings of the last words."""
    del micro
    yield Product(MLP, 2 * rows * length * c.context * c.embedding_width * c.units)


def masked_words(c, positions: int, scored: int = 0) -> Product:
    """The masked LM head at so many positions, with a table `scored` wide (0: the config's)."""
    width = scored or c.embedding_width
    return Product("mlm", 2 * positions * width * (c.hidden_size + c.vocab_size))


def next_words(c, positions: int) -> Product:
    """The language modelling head at so many positions."""
    if sizes := getattr(c, "class_sizes", ()):  # those of one class
        return Product("lm", 2 * positions * c.hidden_size * (len(sizes) + max(sizes)))
    words = c.vocab_size + (c.max_length if getattr(c, "softmax_over_all", False) else 0)
    width = c.embedding_width if getattr(c, "tied_softmax", True) else c.hidden_size
    return Product("lm", 2 * positions * width * words)
