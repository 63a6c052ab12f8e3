"""Memory of a run between its steps, from the shapes and shardings of its train state.

It leaves out activations: the compiler chooses how many of them live at once, and
`firth plan --compile` asks it.
"""

import jax
from jax.sharding import AbstractMesh, AxisType

from firth.run.program import check_rows, lay_out
from firth.training.optim import frozen_patterns, path_mask
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
    from batch to batch.
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
    }
    return {name: size for name, size in sizes.items() if size}


def _total(tree) -> int:
    return sum(_shard_bytes(leaf) for leaf in jax.tree.leaves(tree))


def _shard_bytes(leaf) -> int:
    size = leaf.dtype.itemsize
    for side in leaf.sharding.shard_shape(leaf.shape):
        size *= side
    return size


def _frozen(outline, params):
    """Tree of bool: is the parameter never trained?"""
    patterns = frozen_patterns(outline.config.optimizer, outline.objective.frozen)
    return path_mask(patterns)(params)


def _part(path: str) -> str:
    """'embeddings' for encoder/word/embedding, 'layers' for encoder/stack/..., 'mlm', 'teacher'."""
    owner, name, *_ = path.split("/")
    if owner != "encoder":
        return owner
    if name in ("stack", "final_norm"):
        return "layers"
    return "pooler" if name == "pooler" else "embeddings"
