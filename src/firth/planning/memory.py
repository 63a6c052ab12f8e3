"""Memory of a run: exact between its steps, from the shapes and shardings of its train state.

Within a step, activations add to it. Their bytes are an estimate, since the compiler chooses how
many of them live at once; `firth plan --compile` asks it.
"""

import functools
import math
from collections import Counter

import jax
from jax.sharding import AbstractMesh, AxisType

from firth.models.model import bound
from firth.run.program import check_rows, lay_out
from firth.training.efficient.freezing import read_freezing
from firth.training.partition import AXES, leaf_path, mesh_sizes


def laid_out(outline, devices: int):
    """The program of an outline on so many described devices: its state and shardings.

    Raises FirthError if the config's mesh does not cover them, or if they do not divide the batch.
    """
    config = outline.config
    mesh = AbstractMesh(
        tuple(mesh_sizes(config.mesh, devices)), AXES, axis_types=(AxisType.Auto,) * len(AXES)
    )
    check_rows(config, mesh)
    return lay_out(outline.model, outline.objective, config, outline.steps, mesh)


def parameters(outline, params) -> dict[str, dict[str, int]]:
    """{part: {"total": number, "trained": number}} of a tree of parameters or their shapes.

    Parts are the embeddings, the layers, the pooler, each head, and a second model.
    """
    parts = {}
    frozen = jax.tree.leaves(_frozen(outline, params))
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    for (path, leaf), still in zip(leaves, frozen, strict=True):
        counts = parts.setdefault(_part(leaf_path(path)), {"total": 0, "trained": 0})
        counts["total"] += leaf.size
        counts["trained"] += 0 if still else leaf.size
    return parts


def device_bytes(outline, program) -> dict[str, int]:
    """Bytes on one device, {what: number}: exact, from the shard of every leaf.

    Gradients are those of trained parameters, sharded like them. A carry is the memory of a model
    from batch to batch; `plateau` what its policy keeps beside the parameters.
    """
    state = program.state
    gradients = jax.tree.map(
        lambda leaf, still: 0 if still else _shard_bytes(leaf),
        state.params,
        _frozen(outline, state.params),
    )
    sizes = {
        "parameters": _total(state.params),
        "gradients": sum(jax.tree.leaves(gradients)),
        "optimiser": _total(state.opt_state),
        "carry": _total(state.carry),
        "plateau": _total(state.plateau),
    }
    return {name: size for name, size in sizes.items() if size}


def activation_bytes(outlined, params, rows: int) -> int:
    """About how many bytes the forward pass of so many rows keeps for the backward pass.

    `params` is the tree of parameters or their shapes. It counts what differentiation saves before
    the compiler sees it, without the parameters themselves, and the largest gradient. The compiler
    drops what it computes again inside fused loops, so that a step may take less.
    """
    objective, model = outlined.objective, outlined.model
    batch = {
        name: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)
        for name, leaf in outlined.batch.items()
    }
    losses_of = bound(model, functools.partial(objective.losses, train=True))

    def saved(params, batch, key):
        batch = objective.corrupt(batch, key)
        if carry := objective.carry(model, rows):
            batch |= {"carry": carry}

        def loss(params):
            return losses_of(params, batch, rngs={"dropout": key})[0]

        return jax.vjp(loss, params)[1]

    key = jax.eval_shape(lambda: jax.random.key(0, impl=outlined.config.rng))
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    kept = _kinds(jax.eval_shape(saved, params, batch, key)) - _kinds(params)
    sizes = {kind: math.prod(kind[0]) * kind[1].itemsize for kind in kept}
    # The gradient of the largest array is there at the same time as the array.
    return sum(n * sizes[kind] for kind, n in kept.items()) + max(sizes.values(), default=0)


def _kinds(tree) -> Counter:
    """{(shape, dtype): how many leaves}."""
    return Counter((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))


def _total(tree) -> int:
    return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _shard_bytes(leaf) -> int:
    size = leaf.dtype.itemsize
    for side in leaf.sharding.shard_shape(leaf.shape):
        size *= side
    return size


def _frozen(outline, params):
    """Tree of bool: is the parameter never trained?"""
    freezing = read_freezing(outline.config, outline.objective.frozen, outline.fresh)
    return freezing.mask(params)


def _part(path: str) -> str:
    """'embeddings' for encoder/word/embedding, 'layers' for encoder/stack/..., 'mlm', 'teacher'."""
    owner, name, *_ = path.split("/")
    if owner != "encoder":
        return owner
    if name in ("stack", "final_norm"):
        return "layers"
    return "pooler" if name == "pooler" else "embeddings"
