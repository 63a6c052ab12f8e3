"""The device mesh and the one table that says how every leaf of the train state is sharded.

Models carry no sharding annotations. The table maps regular expressions on a leaf's path to a
PartitionSpec, and is applied to the shapes of the whole state: an optimiser's moments live at
paths that end like their parameter's, so they follow it. Every layout is this table on a mesh:

    data    every device has the parameters, and rows of its own
    zero1   the same, but the moments are divided over `data` as well (Rajbhandari et al. 2020,
            stage 1: gradients are reduce-scattered, updated parameters gathered)
    fsdp    parameters and moments are divided; where they are used, the partitioner gathers them
            or sums activations (Rajbhandari et al. 2020, stage 3; Zhao et al. 2023)
    tensor  each device computes some of the heads and of the MLP's hidden units (Shoeybi et al.
            2019, section 3)
"""

import functools
import math
import re

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from firth.errors import FirthError

AXES = ("data", "fsdp", "tensor")
BATCH = P(("data", "fsdp"))  # rows of a batch are divided over both

# First match counts. A kernel is [input, output]; "tensor" cuts heads and the MLP's hidden axis.
RULES = (
    (r"^carry/", BATCH),
    (r"(query|key|value|qkv|mlp_in)/kernel$", P("fsdp", "tensor")),
    (r"(query|key|value|mlp_in)/bias$", P("tensor")),
    (r"attention/(query|key|value|relative|output)$", P("fsdp", "tensor", None)),
    (r"(content|position|segment)_bias$", P("tensor", None)),
    (r"segment_embedding$", P(None, "tensor", None)),
    (r"mask_embedding$", P(None, None, "fsdp")),
    (r"(attention/output|mlp_out)/kernel$", P("tensor", "fsdp")),
    (r"(pooler|project|dense|hidden|copy|bridge)/kernel$", P("fsdp", None)),
    (r"word/embedding$", P("tensor", "fsdp")),
    (r"(position|type)/embedding$", P(None, "fsdp")),
)
REPLICATED = (
    r"(bias|scale)$",  # vectors as wide as the model: smaller than the cost of gathering them
    r"(^|/)(step|count|skipped|losses)$",
)


def create_mesh(spec=None, devices=None) -> Mesh:
    """Mesh with axes data, fsdp, tensor; a size of -1 takes the devices that are left.

    `slices` of the spec (1 if it is not there) says over how many slices of a pod, joined by the
    data-centre network, the devices are spread: `data` is cut by them first, so that sums over
    `data` alone leave a slice. Devices that name no slice are taken in blocks, as a simulation.
    `devices` may also be those of a topology that is only described.

    Raises FirthError when the sizes do not multiply to the number of devices, and for slices that
    do not divide `data` or are not those of the devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(spec, len(devices))
    slices = int(spec.get("slices", 1)) if spec else 1
    array = arranged(sizes, slices, devices)
    return Mesh(array, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def mesh_sizes(spec, devices: int) -> list[int]:
    """Sizes of the axes that `create_mesh` gives to so many devices; raises as it does."""
    sizes = [int(spec[axis]) if spec else (-1 if axis == "data" else 1) for axis in AXES]
    fixed = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and fixed > 0:
        sizes[sizes.index(-1)] = devices // fixed
    if min(sizes) < 1 or math.prod(sizes) != devices:
        shape = ", ".join(f"{a}={s}" for a, s in zip(AXES, sizes, strict=True))
        raise FirthError(f"mesh ({shape}) does not cover the {devices} devices at hand")
    return sizes


def arranged(sizes: list[int], slices: int, devices) -> np.ndarray:
    """The devices as an array of `sizes`, neighbours on the fast network lying side by side.

    Raises FirthError as `create_mesh` does for slices.
    """
    named = {getattr(device, "slice_index", None) for device in devices}
    found = len(named)
    # GPUs name their hosts so; those may be one mesh without a word about it, a TPU's slices not.
    if None not in named and found != slices and (slices > 1 or devices[0].platform == "tpu"):
        raise FirthError(
            f"mesh.slices={slices}, but the devices belong to {found}; set mesh.slices={found}"
        )
    arrange = functools.partial(mesh_utils.create_device_mesh, allow_split_physical_axes=True)
    data, *rest = sizes
    if slices < 1 or data % slices:
        raise FirthError(
            f"mesh.slices={slices} does not divide mesh.data={data}: only `data` runs over slices"
        )
    if slices == 1:
        return arrange(sizes, devices)
    within, across = (data // slices, *rest), (slices, 1, 1)
    if None not in named:
        return mesh_utils.create_hybrid_device_mesh(
            within, across, devices, allow_split_physical_axes=True
        )
    blocks = np.split(np.asarray(devices), slices)
    return np.concatenate([arrange(within, list(block)) for block in blocks])


def leaf_path(path) -> str:
    """'opt_state/0/mu/encoder/word/embedding' for a key path of jax.tree_util."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def map_with_path(function, tree, *rest):
    """`jax.tree.map` whose function also gets the leaf's path as its first argument."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(leaf_path(path), *leaves), tree, *rest
    )


def spec_of(path: str, shape: tuple[int, ...], mesh: Mesh, rules=RULES) -> P:
    """PartitionSpec of one leaf.

    Raises FirthError when no rule names it and the mesh cuts parameters; where it does not, a leaf
    without a rule, such as that of a user's own head, lies whole on every device.

    A scanned layer's leading axis is never cut, and an axis of the mesh that does not divide its
    dimension is left out there (30,522 words over 8 devices).
    """
    spec = next((spec for pattern, spec in rules if re.search(pattern, path)), None)
    if spec is None:
        if any(re.search(pattern, path) for pattern in REPLICATED):
            return P()
        if mesh.shape["fsdp"] * mesh.shape["tensor"] == 1:
            return P()
        raise FirthError(
            f"no sharding rule matches {path} {shape}; name its layer as partition.RULES does, or "
            "set mesh.fsdp=1 and mesh.tensor=1"
        )
    axes = ((None,) if "/layers/" in path else ()) + tuple(spec)
    fitting = [
        axis if size % ways(axis, mesh) == 0 else None
        for axis, size in zip(axes, shape, strict=False)
    ]
    return P(*fitting)


def ways(axis, mesh: Mesh) -> int:
    """Into how many parts one entry of a PartitionSpec cuts a dimension."""
    names = () if axis is None else (axis,) if isinstance(axis, str) else axis
    return math.prod(mesh.shape[name] for name in names)


def shardings_of(shapes, mesh: Mesh, rules=RULES, *, zero1: bool = False):
    """Tree of NamedSharding for a tree of shapes (from `jax.eval_shape`).

    With `zero1`, what lies under `opt_state` is divided over `data` on top of the rules.
    """

    def sharding(path, leaf):
        spec = spec_of(path, leaf.shape, mesh, rules)
        if zero1 and path.startswith("opt_state/"):
            spec = divided(spec, path, leaf.shape, mesh)
        return NamedSharding(mesh, spec)

    return map_with_path(sharding, shapes)


def divided(spec: P, path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The spec with `data` on the first dimension that is whole and divisible by it, if any is.

    As the rules, it leaves the leading axis of scanned layers alone.
    """
    entries = list(spec) + [None] * (len(shape) - len(spec))
    for i in range("/layers/" in path, len(shape)):
        if ways(entries[i], mesh) == 1 and shape[i] % mesh.shape["data"] == 0:
            entries[i] = "data"
            return P(*entries)
    return spec


def moment_specs(params, frozen, mesh: Mesh):
    """Tree of PartitionSpec that ZeRO-1 gives to the moments of these parameters.

    `frozen` is a tree of bool; such parameters have no moments, and stay as they are.
    """

    def spec(path, leaf, still):
        plain = spec_of(path, leaf.shape, mesh)
        return plain if still else divided(plain, path, leaf.shape, mesh)

    return map_with_path(spec, params, frozen)


def placed(shapes, shardings):
    """The tree of shapes with a sharding each, as restoring and compiling ahead of time want."""
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def own_slice(mesh: Mesh) -> tuple[int, int]:
    """(index, count): which of `count` slices of a batch's rows this process's devices hold.

    Processes whose devices differ in `tensor` alone hold, and read, the same rows. Raises
    FirthError where the rows of a process would not lie side by side.
    """
    shares = mesh.devices.reshape(-1, mesh.shape["tensor"])
    index = jax.process_index()
    own = [i for i, row in enumerate(shares) if any(d.process_index == index for d in row)]
    count, rest = divmod(len(shares), max(len(own), 1))
    if rest or not own or own != list(range(own[0], own[0] + len(own))) or own[0] % len(own):
        raise FirthError(
            f"process {index} would hold the shares {own} of {len(shares)} of each batch: expected "
            "as many for every process, side by side; change mesh.data, mesh.fsdp or mesh.tensor"
        )
    return own[0] // len(own), count


def put_batch(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This process's rows as global arrays, sharded over the mesh's batch axes."""
    sharding = NamedSharding(mesh, BATCH)
    with jax.transfer_guard_host_to_device("allow"):  # the one transfer that the loop wants
        return {
            name: jax.make_array_from_process_local_data(sharding, rows)
            for name, rows in batch.items()
        }
