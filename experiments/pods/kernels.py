"""Cycles a score of the attention kernels, counted in the bundles that the TPU compiler schedules.

    python experiments/pods/kernels.py                  # libtpu, no TPU; a minute
    python experiments/pods/kernels.py --chips v5e --keys 1024 --width 128 --kinds all

A TPU issues one bundle of instructions a cycle. The kernels of `firth.layers.fused` and of
`firth.layers.kernels` have no loops, so that the bundles of one call, times the calls, are the
cycles of a layer. The default is what `firth.planning.compiler.kernels` holds.
"""

import argparse
import itertools
import os
import re
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from firth.layers import fused
from firth.layers.kernels import fused_relative
from firth.planning.compiler import kernels, topology

SLICES = {"v4": "v4:1x1x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1"}
TOKENS, HIDDEN = 8192, 1024  # of a step on a chip: BERT-large, 16 rows of 512
# {kind: (reach, keys, rate of dropout)}: as in BERT, GPT-2 and the local layers of ModernBERT.
KINDS = {"all": (None, 512, 0.1), "causal": ((1024, 0), 1024, 0.1), "local": ((64, 64), 1024, 0.0)}
# {kind: (whether rows are in order, queries)}: the streams of XLNet-base, 384 places of memory.
STREAMS, MEMORY = {"content": (True, 512), "query": (False, 96)}, 384


def cycles(chip: str, keys: int, width: int, rate: float, reach, folder: Path) -> dict[str, float]:
    """{kernel: cycles of one core for each score that it computes}.

    The compiler writes its schedules to `folder`.
    """
    rows, heads, array = TOKENS // keys, HIDDEN // width, arrays(chip)
    x = array((rows, keys, HIDDEN), jnp.bfloat16)
    bits = array((rows, heads, keys, keys // 4), jnp.uint8) if rate else None

    def both(q, k, v, bias, bits, dout):
        def attend(q, k, v):
            return fused._attend(q, k, v, bias, bits, width, 1 / (1 - rate), reach)

        return jax.vjp(attend, q, k, v)[1](dout)

    bias = array((rows, 1, 1, keys), jnp.float32)
    scores = sum(
        fused.block_rows(keys, reach) * (high - low)
        for _, low, high in fused.blocks(keys, keys, reach)
    )
    scores *= fused.LANES // width
    return counted(jax.jit(both).lower(x, x, x, bias, bits, x), fused.names(reach), scores, folder)


def relative_cycles(chip: str, kind: str, width: int, rate: float, folder: Path) -> dict:
    """The same of relative attention, for one stream of 16 rows of 512 that run both ways."""
    (in_order, queries), rows, hidden, array = STREAMS[kind], 16, 768, arrays(chip)
    keys, places, heads = MEMORY + 512, MEMORY + 2 * 512, hidden // width
    q, k = (array((rows, length, hidden), jnp.bfloat16) for length in (queries, keys))
    r = array((2, places, hidden), jnp.bfloat16)
    segments = array((rows, hidden // fused.LANES, fused.SUBLANES, queries), jnp.float32)
    steps = None if in_order else array((rows, queries, fused.LANES), jnp.int32)
    bits = array((rows, heads, queries, keys // 4), jnp.uint8) if rate else None
    flags = array((rows, queries, keys), jnp.int8)
    constants = array((rows,), jnp.int32), flags, steps, bits

    def both(constants, gradients, *inputs):
        def attend(*inputs):  # the content stream reads the query stream's keys and values
            return fused_relative._attend(*inputs, constants, width, 1 / (1 - rate), not in_order)

        return jax.vjp(attend, *inputs)[1](gradients)

    gradients = (q,) if in_order else (q, k, k)
    lowered = jax.jit(both).lower(constants, gradients, q, q, k, k, r, segments)
    scores = fused.LANES // width * queries * keys
    return counted(lowered, fused_relative.names(in_order), scores, folder)


def arrays(chip: str):
    """A function from a shape and a dtype to an array on one chip of a kind."""
    device = topology.devices(topology.parse(SLICES[chip]))[:1]
    whole = NamedSharding(Mesh(np.array(device), "x"), P())
    return lambda shape, dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=whole)


def counted(lowered, names: tuple[str, str], scores: int, folder: Path) -> dict[str, float]:
    """{kernel: bundles of one call for each of its scores}, in what the compiler writes."""
    before, found = set(folder.iterdir()), {}
    lowered.compile()
    new = {path.name: path for path in set(folder.iterdir()) - before}
    for name in names:
        (path,) = (
            new[file] for file in new if f"-{name}." in file and "schedule-analysis_final" in file
        )
        bundles = int(re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())[1])
        found[name] = bundles / scores
    return found


def main():
    """Print the numbers beside those that `firth plan` uses."""
    every = [*KINDS, *STREAMS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", nargs="+", choices=SLICES, default=list(SLICES))
    parser.add_argument("--kinds", nargs="+", choices=every, default=every)
    parser.add_argument("--keys", type=int, help="default: as in the family of the kind")
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rate", type=float, help="of dropout; default: as in the family")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        os.environ["LIBTPU_INIT_ARGS"] = flags  # read when the first topology is described
        for chip, kind in itertools.product(args.chips, args.kinds):
            if chip == "v4" and kind in STREAMS:  # it cannot rotate so
                continue
            reach, keys, rate = KINDS.get(kind, (None, 0, 0.1))
            keys, rate = args.keys or keys, rate if args.rate is None else args.rate
            if kind in STREAMS:
                results = relative_cycles(chip, kind, args.width, rate, Path(folder))
            else:
                results = cycles(chip, keys, args.width, rate, reach, Path(folder))
            for name, found in results.items():
                planned = kernels.CYCLES.get(name, {}).get(chip, 0.0)
                print(
                    f"{chip:4s} {name:32s} {found:.5f} cycles a score, planned {planned:.5f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
