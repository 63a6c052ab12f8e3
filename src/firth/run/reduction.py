"""Reduction of gradients over the `data` axis, once a step, in a dtype of choice.

The partitioner reduces after each product that leaves partial sums, in the dtype of that product.
It reduces a tied word table once for every use, and all parameters again for every micro-batch.
On a mesh with `data` alone, each device here differentiates its own rows instead, in all
micro-batches, and one reduction follows. Under ZeRO-1 it is a reduce-scatter: each device gets the
part that its moments need (Rajbhandari et al. 2020, section 5). On other meshes, and for objectives
that treat rows by their position in the batch, the partitioner reduces: in jaxlib 0.10, XLA cannot
partition a gather over `fsdp` or `tensor` within such a region.
"""

import jax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from firth.errors import FirthError
from firth.layers import dropout
from firth.training import partition

DTYPES = ("float32", "bfloat16")

# With these options the TPU compiler overlaps an all-reduce with the products that follow it in the
# backward pass, instead of waiting for it. That works for an all-reduce of one array. So the
# threshold lets only arrays below a MiB, biases and norms, be combined into larger ones.
ASYNC = {
    "xla_enable_async_all_reduce": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": "true",
    "xla_jf_crs_combiner_threshold_in_bytes": str(2**20),
}


def over_data(gradient, objective, frozen, config, mesh):
    """`gradient` (from `program.make_gradient`) for a batch whose rows are divided over `data`.

    `frozen` maps a tree of parameters to a tree of bool; gradients of frozen ones are zero and are
    not reduced. Raises FirthError for an unknown `reduce_dtype`, and for one other than float32
    where the partitioner reduces.
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
                lambda g, stop, spec: g if stop else reduced(g, spec, dtype), grads, still, specs
            )
            return (loss, measured, grads), carry

        rows = P("data")
        run = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), rows, P(), P()),
            out_specs=((P(), P(), specs), rows),
            check_vma=False,  # or JAX would already reduce the gradient of a replicated parameter
        )
        return run(params, batch, weights, key)

    return apply


def partitioned(objective, mesh) -> str:
    """Why the partitioner must reduce the gradients, or "" if it need not."""
    if mesh.shape["data"] < mesh.size:
        return "mesh.fsdp or mesh.tensor cuts the parameters, too"
    if objective.by_halves:  # the direction of a row depends on its position in the batch
        return "with objective.backwards the halves of a whole batch run in two directions"
    return ""


def along_data(spec: P) -> P:
    """The spec without axes other than `data`."""
    return P(*(entry if entry == "data" else None for entry in spec))


def reduced(gradient, spec: P, dtype: str):
    """The gradient summed over `data`, or this device's part of the sum if the spec has `data`."""
    sent = gradient.astype(dtype)
    if "data" in spec:
        dimension = tuple(spec).index("data")
        sent = jax.lax.psum_scatter(sent, "data", scatter_dimension=dimension, tiled=True)
    else:
        sent = jax.lax.psum(sent, "data")
    return sent.astype(gradient.dtype)


def compiler_options(config, mesh) -> dict[str, str]:
    """Compiler options of the step: ASYNC on TPUs if the config sets `reduce_async`, else {}.

    Raises FirthError if the compiler refuses these options.
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
