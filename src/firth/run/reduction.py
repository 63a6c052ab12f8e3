"""Gradients summed over the `data` axis once a step, in a dtype of choice.

The partitioner sums wherever a product leaves partial sums: in the dtype of that product, a tied
word table once for every use of it, and all parameters again for every micro-batch. Where a mesh
has `data` alone, every device here differentiates its own rows instead, micro-batches and all, and
one sum comes last; under ZeRO-1 each device gets the part of it that its moments need (Rajbhandari
et al. 2020, section 5). On other meshes, and for rows that are not alike, it is the partitioner's:
XLA's cannot (of jaxlib 0.10) cut a gather over `fsdp` or `tensor` within such a region.
"""

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from firth.errors import FirthError
from firth.layers import dropout
from firth.training import partition

DTYPES = ("float32", "bfloat16")

# With these the TPU compiler splits a sum over the products that follow it in the backward pass,
# instead of waiting for all. It can where a sum is of one array: only those smaller than a MiB,
# biases and norms, are gathered into larger ones.
ASYNC = {
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    "xla_jf_crs_combiner_threshold_in_bytes": str(2**20),
}


def over_data(gradient, objective, frozen, config, mesh):
    """`gradient` (from `program.make_gradient`) of a batch whose rows lie over `data`.

    `frozen` makes a tree of bool of one of parameters; the gradients of those are zero anyway.
    Raises FirthError for a dtype that is unknown, or that nobody can promise.
    """
    dtype = config.reduce_dtype
    if dtype not in DTYPES:
        raise FirthError(f"reduce_dtype={dtype!r} is unknown; one of {', '.join(DTYPES)}")
    if mesh is None or mesh.size == 1:
        return gradient
    if reason := partitioned(objective, mesh):
        if dtype != "float32":
            raise FirthError(
                f"reduce_dtype={dtype!r} needs every device to differentiate rows of its own, but "
                f"{reason}; set reduce_dtype='float32'"
            )
        return gradient

    def apply(params, batch, weights, key):
        still = frozen(params)
        specs = jax.tree.map(lambda _: P(), params)
        if config.mesh.zero1:
            specs = jax.tree.map(along_data, partition.moment_specs(params, still, mesh))

        def local(params, batch, weights, key):
            with dropout.rows_over("data"):
                (loss, measured, grads), carry = gradient(params, batch, weights, key)
            loss, measured = jax.lax.psum((loss, measured), "data")
            grads = jax.tree.map(
                lambda g, stop, spec: g if stop else summed(g, spec, dtype), grads, still, specs
            )
            return (loss, measured, grads), carry

        rows = P("data")
        run = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), rows, P(), P()),
            out_specs=((P(), P(), specs), rows),
            check_vma=False,  # or the derivative of a replicated parameter would be a sum already
        )
        return run(params, batch, weights, key)

    return apply


def partitioned(objective, mesh) -> str:
    """Why the sum is left to the partitioner, or "" where it is not."""
    if mesh.shape["data"] < mesh.size:
        return "mesh.fsdp or mesh.tensor cuts the parameters, too"
    if objective.by_halves:  # what a row is hangs on its place in the batch
        return "with objective.backwards the halves of a whole batch run in two directions"
    return ""


def along_data(spec: P) -> P:
    """What of a spec lies over `data`."""
    return P(*(entry if entry == "data" else None for entry in spec))


def summed(gradient, spec: P, dtype: str):
    """The sum of every device's gradient over `data`, or this device's part of it by the spec."""
    sent = gradient.astype(dtype)
    if "data" in spec:
        dimension = tuple(spec).index("data")
        sent = jax.lax.psum_scatter(sent, "data", scatter_dimension=dimension, tiled=True)
    else:
        sent = jax.lax.psum(sent, "data")
    return sent.astype(gradient.dtype)


def compiler_options(config, mesh) -> dict[str, str]:
    """What the step is compiled with: ASYNC for TPUs if the config says `reduce_async`.

    Raises FirthError where the compiler does not know these options.
    """
    if not config.reduce_async or mesh.devices.flat[0].platform != "tpu":
        return {}
    try:
        check = jax.jit(lambda: 0, out_shardings=NamedSharding(mesh, P()), compiler_options=ASYNC)
        check.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        raise FirthError(
            f"reduce_async=True: this compiler refuses its options ({str(error).splitlines()[0]}); "
            "set reduce_async=False, or install the libtpu of firth[tpu]"
        ) from None
    return ASYNC
