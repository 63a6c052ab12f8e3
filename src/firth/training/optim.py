"""Optimisers and learning-rate schedules, each as in the paper's code.

An optimiser here is an optax transformation that returns the *direction* of descent. The step
multiplies it by the schedule's rate, so the logged rate is the applied one. Where the argument
`counts` of `update`, bool [], is False, the state stays as it was, and the direction means nothing.
"""

import re

import jax
import jax.numpy as jnp
import optax

from firth.errors import FirthError
from firth.training.partition import leaf_path, map_with_path
from firth.training.unfreezing.depth import is_stacked, scale_by_depth

# ---------------------------------------------------------------------------------- schedules


def create_schedule(spec, total_steps: int):
    """Function from the number of updates done (0, 1, ...) to the learning rate.

    `spec` holds `name`, `lr`, `warmup` (steps, or a fraction of all steps when below 1) and the
    schedule's own fields. T is the total, W the warm-up. The exact forms:

    - constant: lr;
    - bert_linear: lr (1 - t/T), but lr t/W while t < W, so the rate drops at t = W;
    - albert_poly: the same with a `power`, and warm-up counted from `start` (start_warmup_step);
    - electra_linear: lr (1 - t/T)^power min(1, t/W), a product;
    - xlnet_poly: lr t/W, then polynomial from lr to lr `min_ratio` over T - W;
    - fairseq_polynomial: the same, but `end_lr` sets the final rate;
    - gpt_warmup_linear: x = t/T; (x/w if x <= w else 1) (1 - x), w = W/T;
    - gpt_warmup_cosine: lr t/W, then half a cosine to zero over T - W;
    - stlr: slanted triangle, `cut_fraction` and `ratio` (Howard and Ruder 2018, eq. 3); bounded
      below by lr / ratio, since rounding takes the formula lower in short runs;
    - step_decay: lr decay^max(epoch + 1 - hold, 0), epochs of `steps_per_epoch` from zero;
    - inverse_epoch: lr / decay^max(epoch - hold, 0).

    Raises FirthError for an unknown name or field, and for a warm-up longer than the run.
    """
    fields = dict(spec)
    name = fields.pop("name")
    peak = fields.pop("lr")
    warmup = fields.pop("warmup", 0)
    if "end_lr" in fields:
        fields["min_ratio"] = fields.pop("end_lr") / peak
    W = int(warmup * total_steps) if 0 < warmup < 1 else int(warmup)
    if name not in SCHEDULES:
        raise FirthError(f"schedule.name={name!r} is unknown; choose one of {', '.join(SCHEDULES)}")
    if not 0 <= W <= total_steps:
        raise FirthError(f"schedule.warmup={warmup} is not within the {total_steps} steps")
    try:
        shape = SCHEDULES[name](total_steps, W, **fields)
    except TypeError as error:
        raise FirthError(f"schedule {name!r}: {error}") from None

    def rate(step):
        t = jnp.asarray(step, jnp.float32)
        return jnp.asarray(peak * shape(t), jnp.float32)

    return rate


def _ramp(t, W):
    return t / max(W, 1)


def _constant(T, W):
    return lambda t: jnp.where(t < W, _ramp(t, W), 1.0)


def _bert_linear(T, W, power=1.0, start=0):
    def shape(t):
        decayed = (1 - jnp.minimum(t, T) / T) ** power
        warm = _ramp(jnp.maximum(t - start, 0), W)  # the original's rate is negative before `start`
        return jnp.where(t - start < W, warm, decayed) if W else decayed

    return shape


def _electra_linear(T, W, power=1.0):
    def shape(t):
        decayed = (1 - jnp.minimum(t, T) / T) ** power
        return decayed * jnp.minimum(1.0, _ramp(t, W)) if W else decayed

    return shape


def _polynomial(T, W, power=1.0, min_ratio=0.0):
    def shape(t):
        left = 1 - jnp.clip((t - W) / max(T - W, 1), 0, 1)
        return jnp.where(t < W, _ramp(t, W), min_ratio + (1 - min_ratio) * left**power)

    return shape


def _gpt_linear(T, W):
    def shape(t):
        return jnp.where(t <= W, _ramp(t, W) if W else 1.0, 1.0) * (1 - jnp.minimum(t / T, 1.0))

    return shape


def _gpt_cosine(T, W):
    def shape(t):
        done = jnp.clip((t - W) / max(T - W, 1), 0, 1)
        return jnp.where(t < W, _ramp(t, W), 0.5 * (1 + jnp.cos(jnp.pi * done)))

    return shape


def _stlr(T, W, cut_fraction=0.1, ratio=32.0):
    cut = max(int(T * cut_fraction), 1)

    def shape(t):
        p = jnp.where(t < cut, t / cut, 1 - (t - cut) / (cut * (1 / cut_fraction - 1)))
        return (1 + jnp.maximum(p, 0) * (ratio - 1)) / ratio

    return shape


def _step_decay(T, W, decay, hold, steps_per_epoch):
    return lambda t: decay ** jnp.maximum(t // steps_per_epoch + 1 - hold, 0)


def _inverse_epoch(T, W, decay, hold, steps_per_epoch):
    return lambda t: decay ** -jnp.maximum(t // steps_per_epoch - hold, 0)


SCHEDULES = {
    "constant": _constant,
    "bert_linear": _bert_linear,
    "albert_poly": _bert_linear,
    "electra_linear": _electra_linear,
    "xlnet_poly": _polynomial,
    "fairseq_polynomial": _polynomial,
    "gpt_warmup_linear": _gpt_linear,
    "gpt_warmup_cosine": _gpt_cosine,
    "stlr": _stlr,
    "step_decay": _step_decay,
    "inverse_epoch": _inverse_epoch,
}

# --------------------------------------------------------------------------------- optimisers

MOMENTS = ("b1", "b2", "eps", "bias_correction")
# name of an optimiser -> the fields that it needs
FIELDS = {"adamw": MOMENTS, "lamb": MOMENTS, "adagrad": ("initial_accumulator",), "sgd": ()}


def create_optimizer(
    spec, frozen: tuple[str, ...] = (), fresh: tuple[str, ...] = ()
) -> optax.GradientTransformationExtraArgs:
    """Build the chain (L2,) clip, Adam, decoupled decay, (LAMB's trust ratio), per-path multiplier.

    `spec` holds: `name` ("adamw", "lamb", "adagrad", or "sgd", whose direction is the gradient),
    `b1`, `b2`, `eps`, `bias_correction` (those four for "adamw" and "lamb"), `initial_accumulator`
    (for "adagrad"), `weight_decay`, `decay_exclude` (regular
    expressions on parameter paths), `l2` (a decay as part of the loss, before all else; optional),
    `clip_norm` (0: off),
    `multipliers` (pairs of expression and factor; the first match counts), `freeze` (expressions;
    those parameters get no update and no moments), and optionally `layer_decay` with
    `layer_decay_top` and `layer_decay_exclude` (see `scale_by_depth`). `frozen` holds further
    expressions to freeze. `fresh` holds expressions for parameters that are trained even if another
    expression freezes them.

    Raises FirthError for an unknown optimiser and for an invalid expression; on `init`, for an
    expression of `multipliers` or `freeze` that matches no parameter.
    """
    if spec.name not in FIELDS:
        *known, last = FIELDS
        raise FirthError(
            f"optimizer.name={spec.name!r} is unknown; choose {', '.join(known)} or {last}"
        )
    needed = FIELDS[spec.name]
    if missing := [name for name in needed if name not in spec]:
        raise FirthError(
            f"optimizer.name={spec.name!r} needs optimizer.{missing[0]}, which this recipe lacks; "
            f"write a recipe of your own with {', '.join(needed)}"
        )
    _check_expressions(spec)
    decayed = path_mask(spec.decay_exclude, invert=True)
    parts = [optax.add_decayed_weights(spec.l2)] if spec.get("l2") else []
    if spec.clip_norm:
        parts.append(optax.clip_by_global_norm(spec.clip_norm))
    if spec.name == "adagrad":
        parts.append(scale_by_adagrad(spec.initial_accumulator))
    if needed == MOMENTS:
        parts.append(scale_by_adam(spec.b1, spec.b2, spec.eps, spec.bias_correction))
    if spec.weight_decay:
        parts.append(optax.add_decayed_weights(spec.weight_decay, mask=decayed))
    if spec.name == "lamb":
        parts.append(optax.masked(scale_by_trust_ratio(), decayed))
    if spec.multipliers:
        parts.append(scale_by_path(spec.multipliers))
    if spec.get("layer_decay", 1.0) != 1.0:
        parts.append(
            scale_by_depth(
                spec.layer_decay,
                spec.get("layer_decay_top", 1),
                spec.get("layer_decay_exclude", ()),
            )
        )
    chain = optax.chain(*parts or [optax.identity()])  # plain gradient descent has no parts
    if frozen := frozen_patterns(spec, frozen):
        chain = optax.chain(
            optax.masked(chain, path_mask(frozen, invert=True, but=fresh)),
            optax.masked(optax.set_to_zero(), path_mask(frozen, but=fresh)),
        )

    def init(params):
        _check_matches(spec, named_leaves(params))
        return chain.init(params)

    return optax.with_extra_args_support(chain)._replace(init=init)


def _check_expressions(spec):
    """Raise FirthError unless each field holds expressions, or (expression, factor) pairs."""
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in spec.multipliers):
        raise FirthError(
            f"optimizer.multipliers={spec.multipliers!r} should hold pairs of an expression and a "
            "factor, as in (('layer_0/', 0.5),)"
        )
    for field in ("decay_exclude", "freeze", "multipliers", "layer_decay_exclude"):
        entries = spec.get(field, ())
        if isinstance(entries, str):
            raise FirthError(f"optimizer.{field}={entries!r} should be a tuple of expressions")
        for entry in entries:
            pattern = entry[0] if field == "multipliers" else entry
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise FirthError(
                    f"optimizer.{field}: {pattern!r} is not a regular expression ({error})"
                ) from None


def _check_matches(spec, paths):
    """Raise FirthError for an expression of `freeze` or `multipliers` that matches no parameter."""
    patterns = [("freeze", pattern) for pattern in spec.freeze]
    patterns += [("multipliers", pattern) for pattern, _ in spec.multipliers]
    for field, pattern in patterns:
        if not any(re.search(pattern, path) for path in paths):
            raise FirthError(
                f"optimizer.{field}: {pattern!r} matches no parameter; their paths read like "
                f"{paths[0]} and {paths[-1]} (with model.scan, layers share one path)"
            )


def frozen_patterns(spec, objective: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Expressions of the parameters that a run never trains: the config's and the objective's."""
    return (*spec.freeze, *objective)


def path_mask(patterns, invert: bool = False, but=()):
    """Function from a parameter tree to a tree of bool: does any expression match the path?

    A path that an expression of `but` matches counts as no match.
    """
    included, excluded = ([re.compile(p) for p in group] for group in (patterns, but))

    def matches(path):
        hit, miss = (any(p.search(path) for p in group) for group in (included, excluded))
        return hit and not miss

    def mask(tree):
        return map_with_path(lambda path, _: matches(path) != invert, tree)

    return mask


def scale_by_adam(b1: float, b2: float, eps: float, bias_correction: bool):
    """Adam's direction m / (sqrt(v) + eps); optax has no switch for the bias correction.

    The BERT code leaves the correction out (google-research/bert issue 153), and so do ALBERT,
    ELECTRA and XLNet. Moments are float32.
    """

    def init(params):
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))  # donated separately
        return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), mu, nu)

    def update(grads, state, params=None, *, counts=True, **more):
        del params, more
        # If the moments were chosen after they are read, a CPU would copy all the old ones first.
        mu = jax.tree.map(lambda g, m: jnp.where(counts, b1 * m + (1 - b1) * g, m), grads, state.mu)
        nu = jax.tree.map(
            lambda g, v: jnp.where(counts, b2 * v + (1 - b2) * g * g, v), grads, state.nu
        )
        count = state.count + 1
        c1 = 1 - b1**count if bias_correction else 1.0
        c2 = 1 - b2**count if bias_correction else 1.0
        updates = jax.tree.map(lambda m, v: (m / c1) / (jnp.sqrt(v / c2) + eps), mu, nu)
        count = jnp.where(counts, count, state.count)
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_adagrad(initial: float):
    """Adagrad's direction g / sqrt(initial + sum of g^2), as TensorFlow 1 has it, without epsilon.

    (Duchi et al. 2011, section 1.3; tf.train.AdagradOptimizer.) A parameter that never had a
    gradient does not move, even with `initial` 0.
    """

    def init(params):
        return optax.ScaleByRssState(jax.tree.map(lambda p: jnp.full_like(p, initial), params))

    def update(grads, state, params=None, *, counts=True, **more):
        del params, more
        sums = jax.tree.map(
            lambda g, s: jnp.where(counts, s + g * g, s), grads, state.sum_of_squares
        )
        updates = jax.tree.map(
            lambda g, s: g / jnp.sqrt(jnp.where(s > 0, s, 1.0)),
            grads,
            sums,
        )
        return updates, optax.ScaleByRssState(sums)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_trust_ratio():
    """LAMB (You et al. 2020): multiply by |w| / |update|, or 1 where either is zero.

    Parameters stacked by a scan over layers get one ratio per layer, as unrolled ones do. optax's
    own transformation would give them one ratio for all layers.
    """

    def update(updates, state, params):
        def scale(path, w, u):
            axes = tuple(range(1, u.ndim)) if is_stacked(path) else None
            norm_w = jnp.sqrt(jnp.sum(w * w, axis=axes, keepdims=axes is not None))
            norm_u = jnp.sqrt(jnp.sum(u * u, axis=axes, keepdims=axes is not None))
            zero = (norm_w == 0) | (norm_u == 0)
            return u * jnp.where(zero, 1.0, norm_w / jnp.where(zero, 1.0, norm_u))

        return map_with_path(scale, params, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def scale_by_path(multipliers):
    """Multiply each update by the factor of the first expression that matches its path."""
    compiled = [(re.compile(pattern), factor) for pattern, factor in multipliers]

    def factor(path):
        return next((f for pattern, f in compiled if pattern.search(path)), 1.0)

    def update(updates, state, params=None):
        del params
        return map_with_path(lambda path, u: u * factor(path), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def named_leaves(tree) -> list[str]:
    """Paths of a tree's leaves in flattening order."""
    return [leaf_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
