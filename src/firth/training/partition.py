"""The device mesh, and the one table of shardings for the leaves of the train state.

Models carry no sharding annotations. The table maps regular expressions on a leaf's path to a
PartitionSpec, and covers the whole state: the path of an optimiser's moment ends like that of its
parameter, so the moment gets the same spec. Every layout is this table on a mesh:

    data    every device has all parameters, and its own rows
    zero1   the same, but the moments are divided over `data` as well (Rajbhandari et al. 2020,
            stage 1: gradients are reduce-scattered, updated parameters all-gathered)
    fsdp    parameters and moments are divided; for their use, the partitioner gathers them or sums
            activations (Rajbhandari et al. 2020, stage 3; Zhao et al. 2023)
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
BATCH = P(("data", "fsdp"))  # the rows of a batch are divided over both axes

# First match counts. A kernel is [input, output]; "tensor" cuts heads and the MLP's hidden axis.
RULES = (
    (r"^carry/", BATCH),
    (r"(query|key|value|qkv|mlp_in)/kernel$", P("fsdp", "tensor")),
    (r"(query|key|value|mlp_in)/bias$", P("tensor")),
    (r"attention/(query|key|value|relative|output)$", P("fsdp", "tensor", None)),
    (r"(content|position|segment)_bias$", P("tensor", None)),
    # [inputs, gates, hidden] of recurrent layers. Cut over `tensor`, the state would be gathered in
    # every step, and with `fsdp` XLA (jax 0.10.2) gives Elman's embeddings another gradient.
    (r"stack/(\w+/)?(input|recurrent)(_\d+)?$", P("fsdp", None, None)),
    (r"(forward|backward)/layer_\d+/kernel$", P("fsdp", None, None)),  # ELMo's, alike
    (r"(forward|backward)/layer_\d+/project$", P("fsdp", None)),
    (r"(highway_\d+_(carry|transform)|words/projection)/kernel$", P("fsdp", None)),
    (r"bilm/table$", P("tensor", "fsdp")),
    (r"lm/(softmax|classes)$", P("fsdp", "tensor")),
    (r"segment_embedding$", P(None, "tensor", None)),
    (r"mask_embedding$", P(None, None, "fsdp")),
    (r"(attention/output|mlp_out)/kernel$", P("tensor", "fsdp")),
    (r"(pooler|project|dense|hidden|copy|bridge)/kernel$", P("fsdp", None)),
    (r"word/embedding$", P("tensor", "fsdp")),
    (r"(position|type|character)/embedding$", P(None, "fsdp")),
)
REPLICATED = (
    r"(bias|scale)(_\d+)?$",  # vectors as wide as the model: too small to be worth a gather
    r"words/(embedding|filters_\d+_kernel)$",  # characters: some hundred rows, or fewer
    r"(^|/)(step|count|skipped|losses|stage)$",
    r"crf/(transitions|first|last)$",
    r"(^|/)lora/.+/[ab]$",  # thin
    r"mix/scores$",
    r"^plateau/\w+$",  # its numbers, beside parameters
)


def create_mesh(spec=None, devices=None) -> Mesh:
    """Mesh with axes data, fsdp, tensor; a size of -1 takes the remaining devices.

    `slices` of the spec (default 1) is the number of pod slices, joined by the data-centre network,
    that the devices belong to. It divides `data` first, so that only sums over `data` leave a
    slice. Devices without a slice number are divided into blocks, as a simulation. `devices` may
    also come from a described topology.

    Raises FirthError if the product of the sizes is not the number of devices, and if `slices` does
    not divide `data` or differs from that of the devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = mesh_sizes(spec, len(devices))
    slices = int(spec.get("slices", 1)) if spec else 1
    array = arranged(sizes, slices, devices)
    return Mesh(array, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def mesh_sizes(spec, devices: int) -> list[int]:
    """Sizes of the axes of `create_mesh` for this number of devices; raises as it does."""
    sizes = [int(spec[axis]) if spec else (-1 if axis == "data" else 1) for axis in AXES]
    fixed = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and fixed > 0:
        sizes[sizes.index(-1)] = devices // fixed
    if min(sizes) < 1 or math.prod(sizes) != devices:
        shape = ", ".join(f"{a}={s}" for a, s in zip(AXES, sizes, strict=True))
        raise FirthError(f"mesh ({shape}) does not cover the {devices} devices at hand")
    return sizes


def arranged(sizes: list[int], slices: int, devices) -> np.ndarray:
    """The devices as an array of shape `sizes`, with neighbours on the fast network adjacent.

    Raises FirthError for slices as `create_mesh` does.
    """
    named = {getattr(device, "slice_index", None) for device in devices}
    count = len(named)
    # For GPUs the slice is the host: a mesh may ignore it. A mesh of TPUs must name its slices.
    if None not in named and count != slices and (slices > 1 or devices[0].platform == "tpu"):
        raise FirthError(
            f"mesh.slices={slices}, but the devices belong to {count}; set mesh.slices={count}"
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
    """`jax.tree.map` that passes the leaf's path as a first argument."""
    return jax.tree_util.tree_map_with_path(
        lambda path, *leaves: function(leaf_path(path), *leaves), tree, *rest
    )


def spec_of(path: str, shape: tuple[int, ...], mesh: Mesh, rules=RULES) -> P:
    """PartitionSpec of one leaf.

    The leading axis of a scanned layer is never divided. A dimension that a mesh axis does not
    divide evenly stays whole on that axis (30,522 words over 8 devices). A leaf without a rule,
    such as that of a user's own head, is replicated if the mesh divides no parameters; otherwise
    this raises FirthError.
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
    """The number of parts into which an entry of a PartitionSpec divides a dimension."""
    names = () if axis is None else (axis,) if isinstance(axis, str) else axis
    return math.prod(mesh.shape[name] for name in names)


def shardings_of(shapes, mesh: Mesh, rules=RULES, *, zero1: bool = False):
    """Tree of NamedSharding for a tree of shapes (from `jax.eval_shape`).

    With `zero1`, leaves under `opt_state` are divided over `data` in addition to the rules.
    """

    def sharding(path, leaf):
        spec = spec_of(path, leaf.shape, mesh, rules)
        if zero1 and path.startswith("opt_state/"):
            spec = divided(spec, path, leaf.shape, mesh)
        return NamedSharding(mesh, spec)

    return map_with_path(sharding, shapes)


def divided(spec: P, path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The spec with `data` on the first undivided dimension that `data` divides, if there is one.

    The leading axis of scanned layers stays whole, as in the rules.
    """
    entries = list(spec) + [None] * (len(shape) - len(spec))
    for i in range("/layers/" in path, len(shape)):
        if ways(entries[i], mesh) == 1 and shape[i] % mesh.shape["data"] == 0:
            entries[i] = "data"
            return P(*entries)
    return spec


def moment_specs(params, frozen, mesh: Mesh):
    """Tree of PartitionSpec of the moments of these parameters under ZeRO-1.

    `frozen` is a tree of bool; frozen parameters have no moments and keep their own spec.
    """

    def spec(path, leaf, still):
        plain = spec_of(path, leaf.shape, mesh)
        return plain if still else divided(plain, path, leaf.shape, mesh)

    return map_with_path(spec, params, frozen)


def placed(shapes, shardings):
    """The tree of ShapeDtypeStruct with shardings, for a restore or compiling ahead of time."""
    return jax.tree.map(
        lambda s, sharding: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def own_slice(mesh: Mesh) -> tuple[int, int]:
    """(index, count): this process's devices hold slice `index` of `count` of a batch's rows.

    Processes whose devices differ in `tensor` alone hold, and read, the same rows. Raises
    FirthError if the rows of a process are not contiguous or the shares are unequal.
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
    with jax.transfer_guard_host_to_device("allow"):  # the loop's only transfer to devices
        return {
            name: jax.make_array_from_process_local_data(sharding, rows)
            for name, rows in batch.items()
        }
