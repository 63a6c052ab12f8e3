"""What every family shares: the representation interface and an encoder with its heads."""

import dataclasses
import functools
import importlib
import sys

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from firth import registry
from firth.errors import FirthError
from firth.layers.affine import products_in
from firth.layers.attention import gather
from firth.layers.transformer import reads_places
from firth.models import FAMILIES
from firth.models.heads import classifies_pooled, find_head, key_of
from firth.training.efficient.lora import KEY, merge

EMBEDDINGS = frozenset({"word", "position", "type", "norm"})  # a tied generator shares them
# Loaded weights hold each of these whole or not at all.
BODIES = frozenset({"encoder", "generator", "teacher"})


@flax.struct.dataclass
class Encoded:
    """Output of an encoder. N layers, B batch, L length, D hidden size, H heads.

    last: [B, L, D], the input of heads: `hidden[-1]`. In training some families apply dropout to
      it.
    hidden: [N+1, B, L, D], the embeddings and the output of every layer; None where `last` is that
      of some places.
    pooled: [B, D], or None where the family has no pooler.
    attentions: probabilities [N, B, H, L, L]; None unless the caller asks for them.
    memory: the next segment of the same rows attends to it. None where the family has no memory.
    """

    last: jax.Array
    hidden: jax.Array | None = None
    pooled: jax.Array | None = None
    attentions: jax.Array | None = None
    memory: dict | None = None


class Model(nn.Module):
    """An encoder and the heads named in `heads`: parameters under `encoder` and each head's name.

    Objectives, tasks, extraction and exchange see only this interface. Two kinds of pretraining
    need a second model, with parameters under its role: a `generator`, trained beside this one
    (`tied`: on this one's embeddings), or a frozen `teacher`. `products` is what a `bound` function
    multiplies float32 arrays in (see `layers.affine.products_in`).
    """

    encoder: nn.Module
    heads: tuple[str, ...] = ()
    num_labels: int = 2
    classifier_dropout: float = 0.1
    generator: "Model | None" = None
    tied: bool = False
    teacher: "Model | None" = None
    tasks: tuple[tuple[str, int], ...] = ()  # names and outputs of the classifiers of `tasks`
    scores_against: int = 0  # width of the MLM head's word table; 0: that of the encoder's own
    products: str = "float32"

    def setup(self):
        """Build the heads; each is an attribute, so that objectives may call it."""
        for name in self.heads:
            setattr(self, f"{key_of(name)}_head", find_head(name).build(self, key_of(name)))

    def __call__(self, tokens_BL, segments_BL=None, mask_BL=None, *, attentions=False):
        """Encode without dropout and apply every head; returns (Encoded, {head: logits})."""
        out = self.encoder(tokens_BL, segments_BL, mask_BL, attentions=attentions)
        logits = {name: find_head(name).logits(self, name, out, mask_BL) for name in self.heads}
        if self.is_initializing():  # the second model gets its parameters too
            if self.generator:
                first_B1 = jnp.zeros_like(tokens_BL[:, :1])
                rows = (tokens_BL, segments_BL, mask_BL)
                self.generate(self.generator_hidden(first_B1, *rows, train=False))
            if self.teacher:
                self.teacher(tokens_BL, segments_BL, mask_BL)
        return out, logits

    def head(self, name: str) -> nn.Module:
        """The module of a head, a function of hidden states or of the pooled output."""
        return getattr(self, f"{key_of(name)}_head")

    def mlm(self, hidden_BMD):
        """Vocabulary logits float32 [B, M, V] at gathered positions."""
        return self.mlm_head(hidden_BMD, self.encoder.decode)

    def read_at(self, at_BP, tokens_BL, segments_BL=None, mask_BL=None, *, train=False) -> Encoded:
        """Encode for what stands at places int [B, P] of each row alone: `last` is [B, P, D].

        `pooled` is that of a row if its first place is 0. Bodies that can (`layers.transformer.
        reads_places`) compute their last layer at these places alone.
        """
        encode = functools.partial(self.encoder, tokens_BL, segments_BL, mask_BL, train=train)
        return _at(at_BP, self.encoder, encode)

    def lm(self, hidden_BLD):
        """Vocabulary logits float32 [B, L, V] of the token after each, or at it for XLNet."""
        return self.lm_head(hidden_BLD, self.encoder.decode)

    def copies(self, hidden_BLD):
        """Logits float32 [B, L] that a token is the original (All-tokens MLM)."""
        return self.head("copy")(hidden_BLD)[..., 0].astype(jnp.float32)

    def classify(self, out: Encoded, mask_BL=None, *, train=False, head="classifier"):
        """Logits float32 [B, C] of the family's classifier, or of `head`, made like it.

        It reads by `classifier_pooling` the first token ("cls"), the last real one ("last"), the
        mean of the real ones ("mean"), or the last, greatest and mean values beside each other
        ("concat"); the first and the mean through the pooler, unless it has a hidden layer of its
        own.
        """
        c = self.encoder.config
        pools = classifies_pooled(c)
        if c.classifier_pooling == "cls":
            x_BD = out.pooled if pools else out.last[:, 0]
        elif c.classifier_pooling == "concat":
            x_BD = concat_pooled(out.last, mask_BL)
        elif c.classifier_pooling == "last":
            real_BL = jnp.ones(out.last.shape[:2], bool) if mask_BL is None else mask_BL
            x_BD = out.last[jnp.arange(len(out.last)), last_real(real_BL)]
        else:
            weights_BL = jnp.ones(out.last.shape[:2]) if mask_BL is None else mask_BL
            x_BD = jnp.einsum("BLD,BL->BD", out.last, weights_BL.astype(out.last.dtype))
            x_BD /= jnp.maximum(weights_BL.sum(1, keepdims=True), 1)  # padding rows have none
            x_BD = self.encoder.pool(x_BD) if pools else x_BD
        return self.head(head)(x_BD, train=train)

    def classify_packed(self, tokens_BL, segments_BL, text_BL, texts: int, head: str, *, train):
        """Logits float32 [B, T, C] of a head made like the classifier, for packed rows.

        `text_BL` numbers the at most T = `texts` texts of a row from 1. The logits of texts that a
        row lacks have no meaning.
        """
        rows, c = (tokens_BL, segments_BL, text_BL), self.encoder.config
        own_BTL = text_BL[:, None] == jnp.arange(1, texts + 1)[:, None]
        if c.classifier_pooling == "mean":
            last_BLD = self.encoder(*rows, train=train).last
            count_BT1 = jnp.maximum(own_BTL.sum(2, keepdims=True), 1)
            x_BTD = jnp.einsum("BTL,BLD->BTD", own_BTL.astype(last_BLD.dtype), last_BLD) / count_BT1
        else:
            x_BTD = self.read_at(own_BTL.argmax(2), *rows, train=train).last
        x_BTD = self.encoder.pool(x_BTD) if classifies_pooled(c) else x_BTD
        return self.head(head)(x_BTD, train=train)

    def generator_hidden(self, at_BP, tokens_BL, segments_BL, mask_BL, *, train):
        """The generator's last hidden states [B, P, D_generator] at places of each row.

        Without a second model, this one is also the generator (complete weight sharing).
        """
        if mask_BL is None:
            mask_BL = jnp.ones(tokens_BL.shape, bool)
        body = self.generator.encoder if self.generator else self.encoder
        table = self.encoder if self.tied else body
        e_BLE = table.embed(tokens_BL, segments_BL, mask_BL, train=train)
        encode = functools.partial(body.encode, e_BLE, mask_BL, train=train)
        return _at(at_BP, body, encode).last

    def generate(self, hidden_BMD):
        """The generator's vocabulary logits float32 [B, M, V]."""
        generator = self.generator or self
        table = self.encoder if self.tied else generator.encoder
        return generator.mlm_head(hidden_BMD, table.decode)


def _at(at_BP, body, encode) -> Encoded:
    """What `encode`, a function of the body, has at places int [B, P] of each row."""
    if reads_places(body):
        return encode(at_BP=at_BP)
    out = encode()
    return Encoded(last=gather(out.last, at_BP), pooled=out.pooled)


def concat_pooled(h_BLD, mask_BL=None):
    """[last; greatest; mean] over the real places of each row, [B, 3 D]; 0 for an empty row.

    Howard and Ruder 2018, section 3.3.
    """
    real_BL = jnp.ones(h_BLD.shape[:2], bool) if mask_BL is None else mask_BL
    real_BL1, count_B1 = real_BL[..., None], jnp.maximum(real_BL.sum(1, keepdims=True), 1)
    last_BD = h_BLD[jnp.arange(len(h_BLD)), last_real(real_BL)]
    lowest = jnp.finfo(h_BLD.dtype).min
    greatest_BD = jnp.where(real_BL1, h_BLD, lowest).max(1)
    mean_BD = jnp.where(real_BL1, h_BLD, 0).sum(1) / count_B1.astype(h_BLD.dtype)
    pooled = jnp.concatenate([last_BD, greatest_BD, mean_BD], axis=-1)
    return jnp.where(real_BL.any(1, keepdims=True), pooled, 0)


def last_real(mask_BL):
    """Place int [B] of each row's last real token."""
    return jnp.where(mask_BL, jnp.arange(mask_BL.shape[1]), 0).max(1)


def bound(model: Model, function, mutable=False):
    """Turn a function of a bound model and *args into a pure one: (params, *args, rngs=).

    Objectives use a model as an object; the step and the evaluation differentiate and jit it. The
    parameters may have factors of LoRA beside them. With `mutable`, the name of a collection, the
    result is (result, {that name: what the layers put there}), the latter {} if that is nothing.
    """

    def call(params, *args, rngs=None):
        with products_in(model.products):
            return nn.apply(function, model, mutable=mutable)(
                {"params": merge(params)}, *args, rngs=rngs
            )

    return call


def sized(system: str, sizes: dict[str, tuple], name: str) -> tuple:
    """The entry of a family's table of sizes; raises FirthError, with all names, for another."""
    if name not in sizes:
        raise FirthError(f"{system} has no size {name!r}; choose one of {', '.join(sizes)}")
    return sizes[name]


def longest(spec: dict) -> int:
    """The greatest number of tokens in a row."""
    return spec.get("max_length") or family(spec["family"]).Config.max_length


def is_stateful(config) -> bool:
    """Whether a body with this Config is recurrent: its memory is a state, not so many places."""
    return getattr(config, "stateful", False)


def reads_backward(config) -> bool:
    """Whether a body with this Config reads texts from their end."""
    return getattr(config, "backward", False)


def family(name: str):
    """The module of a family: `Config`, `Body`, `SPECIAL_TOKENS`; Firth's own add `PUBLISHED`.

    `name` is one of `FAMILIES`, or the user's own as "module:Body". Raises FirthError for an
    unknown one.
    """
    if ":" in str(name):
        return sys.modules[registry.resolve("model.family", name, {}).__module__]
    if name not in FAMILIES:
        raise FirthError(f"model.family={name!r} is unknown; Firth knows {', '.join(FAMILIES)}")
    return importlib.import_module(FAMILIES[name])


def create(
    spec,
    heads=(),
    num_labels: int = 2,
    *,
    generator=None,
    tied: bool = False,
    teacher=None,
    tasks: tuple[tuple[str, int], ...] = (),
) -> Model:
    """Build a `Model` from a config's `model` section.

    Args:
      spec: `family`, fields of that family's `Config`, and optionally `classifier_dropout`.
      heads: their names.
      num_labels: of the classifier.
      generator: the spec of a second model with an MLM head, trained beside this one.
      tied: whether the generator uses this model's embeddings.
      teacher: the spec of a second model with an MLM head.
      tasks: (name, outputs) of each classifier of the head "tasks".

    Raises FirthError for an unknown family or field, for a rate out of range and for a head on the
    pooled output of a model that has none.
    """
    encoder, classifier_dropout = _encoder(spec, heads)
    second = {"tied": tied, "tasks": tuple(tasks)}
    if generator:
        body, rate = _encoder(generator, ("mlm",))
        width = encoder.config.embedding_width if tied else 0
        second["generator"] = Model(body, ("mlm",), 2, rate, scores_against=width)
    if teacher:
        body, rate = _encoder(teacher, ("mlm",))
        second["teacher"] = Model(body, ("mlm",), 2, rate)
    return Model(encoder, tuple(heads), num_labels, classifier_dropout, **second)


def _encoder(spec, heads) -> tuple[nn.Module, float]:
    """(encoder, dropout of its classifier) of a model section."""
    fields = dict(spec)
    module = family(fields.pop("family", None))
    for name in ("dropout", "attention_dropout", "classifier_dropout"):
        if not 0 <= fields.get(name, 0.0) < 1:
            raise FirthError(f"model.{name}={fields[name]} should lie in [0, 1)")
    classifier_dropout = fields.pop("classifier_dropout", 0.1)
    known = {f.name for f in dataclasses.fields(module.Config)}
    if unknown := sorted(set(fields) - known):
        raise FirthError(
            f"model has no field {', '.join(unknown)}; the fields are {', '.join(sorted(known))}"
        )
    config = module.Config(**fields)
    for head in heads:
        if find_head(head).reads_pooled(config) and not config.pooler:
            raise FirthError(
                f"head {head!r} needs a pooled output, which this model lacks"
                + (": set model.pooler" if "pooler" in known else "")
            )
    return module.Body(config), classifier_dropout


def parameter_count(params) -> int:
    """Number of scalars in a tree of arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def to_layout(params: dict, scan: bool) -> dict:
    """Nested parameters with layers stacked under `layers` (scan) or as `layer_0`, `layer_1` ...

    Both layouts hold the same numbers. Files always have the unrolled one.
    """
    names = [name for name in params if name.startswith("layer_")]
    if scan and names and "layers" not in params:
        ordered = [params[f"layer_{i}"] for i in range(len(names))]
        alike = jax.tree.structure(ordered[0]) == jax.tree.structure(ordered[-1])
        alone = 0 if alike else 1  # ModernBERT's first layer has no norm and stays by itself
        rest = {name: value for name, value in params.items() if name not in names}
        rest |= {f"layer_{i}": ordered[i] for i in range(alone)}
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *ordered[alone:])
        return rest | {"layers": stacked}
    if not scan and "layers" in params:
        rest = {name: value for name, value in params.items() if name != "layers"}
        count = len(jax.tree.leaves(params["layers"])[0])
        return rest | {
            f"layer_{len(names) + i}": jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"])
            for i in range(count)
        }
    return {
        name: to_layout(value, scan) if isinstance(value, dict) else value
        for name, value in params.items()
    }


def merge_params(params: dict, loaded: dict, source: str) -> tuple[dict, list[str]]:
    """Replace fresh parameters by loaded ones; return the result and the names still fresh.

    A head stays fresh where `loaded` lacks it, or where the new task has another number of labels.
    Raises FirthError if `loaded` has a body (encoder, generator, teacher) with a parameter missing
    or of another shape.
    """
    fresh = []
    flat, new = flatten_dict(params, sep="/"), flatten_dict(loaded, sep="/")
    for name, value in flat.items():
        if name.startswith(f"{KEY}/"):
            continue  # files hold merged weights
        weight = new.get(name)
        if weight is not None and weight.shape == value.shape:
            flat[name] = np.asarray(weight, value.dtype)
            continue
        fresh.append(name)
        body = name.split("/")[0]
        if body in BODIES & loaded.keys() and not name.startswith("encoder/pooler/"):
            shape = "missing" if weight is None else f"of shape {list(weight.shape)}"
            raise FirthError(
                f"{source}: {name} is {shape}, but this model's is {list(value.shape)}; "
                "the model section must describe the weights that it starts from"
            )
    return unflatten_dict(flat, sep="/"), fresh
