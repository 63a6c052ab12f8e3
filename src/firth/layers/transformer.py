"""The post-norm Transformer encoder stack (Vaswani et al. 2017; Devlin et al. 2019).

B batch, L length, P places, D model width, N layers, H heads.
"""

import functools
import logging
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers import cudnn
from firth.layers.affine import dot_general
from firth.layers.attention import RESIDUALS, MultiHeadAttention, check_cudnn, gather
from firth.layers.dropout import Dropout

log = logging.getLogger("firth")


@jax.custom_jvp
def gelu(x):
    """x times the normal distribution's share below x (Hendrycks and Gimpel 2016), with x's dtype.

    It takes `erf` in float32, as PyTorch does; jax.nn.gelu takes `erfc`, which costs a CPU four
    times as much. The backward pass keeps one array, the slope.
    """
    return _gelu_and_slope(x)[0]


@gelu.defjvp
def _gelu_jvp(primals, tangents):
    y, slope = _gelu_and_slope(*primals)
    return y, slope * tangents[0]


def _gelu_and_slope(x):
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    share = 0.5 * (1 + jax.lax.erf(wide * math.sqrt(0.5)))
    density = jnp.exp(-0.5 * wide * wide) * math.sqrt(0.5 / math.pi)
    return (wide * share).astype(x.dtype), (share + wide * density).astype(x.dtype)


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
}

# How attention is computed. "auto" is for runs: `choose_attention` takes one of the others.
ATTENTION = ("plain", "cudnn", "auto")
# The kinds of mask that cuDNN must be right with, for families that have others than padding; see
# `attention.check_cudnn`. Without any: families whose scores it cannot compute.
MASKS = {
    "gpt": ("causal",),
    "gpt2": ("causal",),
    "modernbert": ("padding", "window"),
    "xlnet": (),
    "transformer_xl": (),
}
RELATIVE = "it adds no term for relative positions to the scores, as this family does"

# What the backward pass keeps; it computes the rest again. From least to most memory: a layer's
# input alone, the products with parameters, those and the residuals of attention.
_policies = jax.checkpoint_policies
REMAT_POLICIES = {
    "full": _policies.nothing_saveable,
    "dots": _policies.dots_with_no_batch_dims_saveable,
    "all_dots": _policies.save_from_both_policies(
        _policies.dots_with_no_batch_dims_saveable, _policies.save_only_these_names(RESIDUALS)
    ),
}


def check_body(config):
    """Raise FirthError for dimensions and settings that no Transformer body can have."""
    if config.num_heads < 1 or config.hidden_size % config.num_heads:
        raise FirthError(
            f"model.hidden_size={config.hidden_size} is not a multiple of "
            f"model.num_heads={config.num_heads}"
        )
    for name, known in (
        ("activation", ACTIVATIONS),
        ("remat", ("none", *REMAT_POLICIES)),
        ("dtype", ("float32", "bfloat16", "float16")),
        ("attention", ATTENTION),
    ):
        if getattr(config, name, "plain") not in known:  # not every family has `attention`
            raise FirthError(
                f"model.{name}={getattr(config, name)!r} is unknown; one of {', '.join(known)}"
            )
    for name in ("vocab_size", "num_layers", "hidden_size", "intermediate_size", "max_length"):
        if getattr(config, name) < 1:
            raise FirthError(f"model.{name}={getattr(config, name)} should be at least 1")


def choose_attention(fields, *more: str) -> str:
    """ "plain" or "cudnn", for a model section's `attention` on the devices that will train.

    `more` are kinds of mask beside those of the family: "blocks" where rows are packed.

    cuDNN's attention must agree with the plain way here before a run trains with it. "auto" takes
    it where it does, and the log says what it took and why. Raises FirthError where "cudnn" is
    asked for and cannot be had.
    """
    wanted = fields.get("attention", "plain")
    if wanted == "plain":
        return wanted
    kind = jax.devices()[0].device_kind
    masks = MASKS.get(fields.get("family"), ("padding",))
    width = fields["hidden_size"] // fields["num_heads"]
    why = cudnn.unfit(fields["dtype"], width, fields.get("attention_dropout", 0.0))
    if not masks:
        why = RELATIVE
    elif not cudnn.on_cuda():
        why = f"this {kind} is no NVIDIA GPU"
    why = why or check_cudnn(fields["dtype"], width, (*masks, *more))
    if why and wanted == "cudnn":
        other = "or set" if masks else "set"
        raise FirthError(f"model.attention=cudnn: {why}; {other} model.attention=plain")
    takes = f"the plain way: {why}" if why else f"cudnn, right on this {kind}"
    log.info("model.attention=%s takes %s", wanted, takes)
    return "plain" if why else "cudnn"


def reads_places(body: nn.Module) -> bool:
    """Whether a body can compute its last layer at some places alone (`at_BP` of its `encode`).

    Its class itself says so (`last_layer_at`, which is not inherited). Scanned layers are computed
    as one, and kernels of attention take whole rows.
    """
    if not vars(type(body)).get("last_layer_at", False):
        return False
    c = body.config
    return not (c.scan or c.fused_attention or c.attention == "cudnn")


def layer_norm(config, name: str | None = None) -> nn.LayerNorm:
    """Layer normalisation with float32 statistics (two passes: the variance cannot cancel)."""
    return nn.LayerNorm(
        epsilon=config.norm_epsilon,
        dtype=config.dtype,
        use_bias=config.bias,
        use_fast_variance=False,
        name=name,
    )


def dense(
    config, features: int, name: str | None = None, bias: bool | None = None, init=None
) -> nn.Dense:
    """Map with the family's compute dtype; parameters are float32.

    `bias` says whether it has a bias; by default as the family's layers (`config.bias`). `init`
    makes its initial kernel; by default the family's `initializer`.
    """
    return nn.Dense(
        features,
        dtype=config.dtype,
        use_bias=config.bias if bias is None else bias,
        kernel_init=init or initializer(config),
        dot_general=dot_general,
        name=name,
    )


def initializer(config, scale: float = 1.0) -> nn.initializers.Initializer:
    """Normal, for most families truncated at two standard deviations and not rescaled (as TF1).

    A Config with `init_range` above 0 has uniform ones between it and its negative.
    """
    if limit := getattr(config, "init_range", 0.0):

        def uniform(key, shape, dtype=jnp.float32):
            return jax.random.uniform(key, shape, dtype, -limit * scale, limit * scale)

        return uniform
    normal = nn.initializers.truncated_normal if config.truncated else nn.initializers.normal
    return normal(config.init_stddev * scale)


def edge_initializer(config) -> nn.initializers.Initializer:
    """For the map from the embeddings to the layers, and for the last layer of a head.

    The released code of some families (`config.glorot_edges`) names no initialiser there. TF1 then
    takes Glorot's uniform one: within sqrt(6 / (inputs + outputs)).
    """
    return nn.initializers.glorot_uniform() if config.glorot_edges else initializer(config)


class Block(nn.Module):
    """One layer: self-attention and a two-layer MLP, each with dropout, residual, LayerNorm."""

    config: object

    @nn.compact
    def __call__(self, x_BLD, bias, train: bool, attentions: bool, at_BP=None):
        """Return the new hidden states and what the stack collects: (hidden, probabilities).

        With `at_BP` it is computed at these places alone, [B, P, D], and nothing is collected.
        """
        c = self.config
        attention = MultiHeadAttention(
            c.num_heads,
            c.attention_dropout,
            c.dtype,
            initializer(c),
            c.fused_attention,
            c.attention,
            name="attention",
        )
        drop = Dropout(c.dropout)
        out_BLD, probs_BHLM = attention(x_BLD, bias, train=train, at_BP=at_BP)
        x_BLD = x_BLD if at_BP is None else gather(x_BLD, at_BP)
        out_BLD = drop(out_BLD, train=train and c.attention_output_dropout)
        x_BLD = layer_norm(c, "attention_norm")(x_BLD + out_BLD)
        h_BLF = ACTIVATIONS[c.activation](dense(c, c.intermediate_size, "mlp_in")(x_BLD))
        out_BLD = dense(c, c.hidden_size, "mlp_out")(h_BLF)
        x_BLD = layer_norm(c, "mlp_norm")(x_BLD + drop(out_BLD, train=train))
        if at_BP is not None:
            return x_BLD, (None, None)
        return x_BLD, (x_BLD, probs_BHLM if attentions else None)


def rematerialised(config, block: type[nn.Module]) -> type[nn.Module]:
    """The block with the config's policy of what the backward pass keeps (`config.remat`)."""
    if config.remat == "none":
        return block
    return nn.remat(
        block,
        policy=REMAT_POLICIES[config.remat],
        prevent_cse=not config.scan,
        static_argnums=(3, 4),
    )


def scanned(block: type[nn.Module], length: int, *inputs: int):
    """`length` blocks as one that is compiled once; its parameters have a leading axis.

    All blocks share their arguments (context, train, attentions) after the state. Each gets its own
    part of the arguments that follow, along the axes `inputs`.
    """
    return nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(nn.broadcast, nn.broadcast, nn.broadcast, *inputs),
        length=length,
    )


def run_layers(config, block: type[nn.Module], x, context, train: bool, attentions: bool, *inputs):
    """Apply `num_layers` blocks: unrolled, or scanned so that one layer is compiled instead of N.

    For the compact method of a stack. Scanned parameters live under `layers` with a leading axis N,
    unrolled ones under `layer_0` ...

    Args:
      config: a family's Config.
      block: called as (x, context, train, attentions, a layer's own part of each input). It returns
        the new `x` and a tuple (hidden states, probabilities or None, further outputs).
      x: what the first layer starts from.
      context: what all layers share.
      train, attentions: whether to apply dropout, and to collect probabilities.
      inputs: the parts of all layers along a first axis N (or as a sequence), or None.

    Returns:
      The last `x`, all hidden states [N, ...], all probabilities [N, ...] or None, and each further
      output: [N, ...] where layers are scanned, else a tuple of N.
    """
    block = rematerialised(config, block)
    if config.scan:
        layers = scanned(block, config.num_layers, *(0 for _ in inputs))(config, name="layers")
        x, collected = layers(x, context, train, attentions, *inputs)
        return x, *collected
    layers = [block(config, name=f"layer_{i}") for i in range(config.num_layers)]
    return in_turn(layers, x, context, train, attentions, *inputs)


def in_turn(layers: list[nn.Module], x, context, train: bool, attentions: bool, *inputs):
    """Apply layers one after another; arguments and results as `run_layers` has them."""
    collected = []
    for i, layer in enumerate(layers):
        own = (None if part is None else part[i] for part in inputs)
        x, out = layer(x, context, train, attentions, *own)
        collected.append(out)
    hidden, probs, *rest = zip(*collected, strict=True)
    hidden = None if hidden[-1] is None else jnp.stack(hidden)  # the last layer may collect nothing
    return x, hidden, jnp.stack(probs) if attentions else None, *rest


class Stack(nn.Module):
    """`num_layers` blocks; see `run_layers`."""

    config: object

    @nn.compact
    def __call__(self, x_BLD, bias, *, train: bool, attentions: bool, at_BP=None):
        """Return the last hidden states [B,L,D], all N of them [N,B,L,D], and probabilities.

        Probabilities are [N, B, H, L, L], or None unless `attentions`. With `at_BP` (see
        `reads_places`) the last hidden states are those at these places alone, [B, P, D], and the
        rest is None.
        """
        c = self.config
        if at_BP is None:
            return run_layers(c, Block, x_BLD, bias, train, attentions)
        own = [None] * (c.num_layers - 1) + [at_BP]
        return run_layers(c, Block, x_BLD, bias, train, False, own)
