"""Cycles a score of the attention kernels, counted in the bundles that the TPU compiler schedules.

    python experiments/pods/kernels.py                  # libtpu, no TPU; a minute
    python experiments/pods/kernels.py --chips v5e --keys 1024 --width 128 --kinds all

A TPU issues one bundle of instructions a cycle. The kernels of `firth.layers.fused` have no loops,
so that the bundles of one call, times the calls, are the cycles of a layer. The default is what
`firth.planning.compiler.kernels` holds.
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
from firth.planning.compiler import kernels, topology

SLICES = {"v4": "v4:1x1x1", "v5e": "v5e:1x1", "v5p": "v5p:1x1x1", "v6e": "v6e:1x1"}
TOKENS, HIDDEN = 8192, 1024  # of a step on a chip: BERT-large, 16 rows of 512
# {kind: (reach, keys, rate of dropout)}: as in BERT, GPT-2 and the local layers of ModernBERT.
KINDS = {"all": (None, 512, 0.1), "causal": ((1024, 0), 1024, 0.1), "local": ((64, 64), 1024, 0.0)}


def cycles(chip: str, keys: int, width: int, rate: float, reach, folder: Path) -> dict[str, float]:
    """{kernel: cycles of one core for each score that it computes}.

    The compiler writes its schedules to `folder`.
    """
    rows, heads = TOKENS // keys, HIDDEN // width
    device = topology.devices(topology.parse(SLICES[chip]))[:1]
    whole = NamedSharding(Mesh(np.array(device), "x"), P())

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    x = array((rows, keys, HIDDEN), jnp.bfloat16)
    bits = array((rows, heads, keys, keys // 4), jnp.uint8) if rate else None

    def both(q, k, v, bias, bits, dout):
        def attend(q, k, v):
            return fused._attend(q, k, v, bias, bits, width, 1 / (1 - rate), reach)

        return jax.vjp(attend, q, k, v)[1](dout)

    before = set(folder.iterdir())
    bias = array((rows, 1, 1, keys), jnp.float32)
    jax.jit(both).lower(x, x, x, bias, bits, x).compile()
    new = {path.name: path for path in set(folder.iterdir()) - before}
    found = {}
    scores = sum(
        fused.block_rows(keys, reach) * (high - low)
        for _, low, high in fused.blocks(keys, keys, reach)
    )
    for name in fused.names(reach):
        (path,) = (
            new[file] for file in new if f"-{name}" in file and "schedule-analysis_final" in file
        )
        bundles = int(re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())[1])
        found[name] = bundles / (fused.LANES // width * scores)
    return found


def main():
    """Print the numbers beside those that `firth plan` uses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", nargs="+", choices=SLICES, default=list(SLICES))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--keys", type=int, help="default: as in the family of the kind")
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rate", type=float, help="of dropout; default: as in the family")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        os.environ["LIBTPU_INIT_ARGS"] = flags  # read when the first topology is described
        for chip, kind in itertools.product(args.chips, args.kinds):
            reach, keys, rate = KINDS[kind]
            keys, rate = args.keys or keys, rate if args.rate is None else args.rate
            for name, found in cycles(chip, keys, args.width, rate, reach, Path(folder)).items():
                planned = kernels.CYCLES.get(name, {}).get(chip, 0.0)
                print(
                    f"{chip:4s} {name:32s} {found:.5f} cycles a score, planned {planned:.5f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
