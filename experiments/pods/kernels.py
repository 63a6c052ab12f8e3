"""Cycles a score of the attention kernels, counted in the bundles that the TPU compiler schedules.

    python experiments/pods/kernels.py                  # libtpu, no TPU; a minute
    python experiments/pods/kernels.py --chips v5e --keys 1024 --width 128

A TPU issues one bundle of instructions a cycle. The kernels of `firth.layers.fused` have no loops,
so that the bundles of one call, times the calls, are the cycles of a layer. The default is what
`firth.planning.compiler.kernels` holds.
"""

import argparse
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


def cycles(chip: str, keys: int, width: int, rate: float, folder: Path) -> dict[str, float]:
    """{kernel: cycles a score of one core}; the compiler writes its schedules to `folder`."""
    rows, heads = TOKENS // keys, HIDDEN // width
    device = topology.devices(topology.parse(SLICES[chip]))[:1]
    whole = NamedSharding(Mesh(np.array(device), "x"), P())

    def array(shape, dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    x = array((rows, keys, HIDDEN), jnp.bfloat16)
    bits = array((rows, heads, keys, keys // 4), jnp.uint8) if rate else None

    def both(q, k, v, bias, bits, dout):
        def attend(q, k, v):
            return fused._attend(q, k, v, bias, bits, width, 1 / (1 - rate))

        return jax.vjp(attend, q, k, v)[1](dout)

    before = set(folder.iterdir())
    bias = array((rows, 1, 1, keys), jnp.float32)
    jax.jit(both).lower(x, x, x, bias, bits, x).compile()
    new = {path.name: path for path in set(folder.iterdir()) - before}
    found = {}
    for name in (fused.FORWARD, fused.BACKWARD):
        (path,) = (
            new[file] for file in new if f"-{name}" in file and "schedule-analysis_final" in file
        )
        bundles = int(re.search(r"total scheduled bundles:\s+(\d+)", path.read_text())[1])
        found[name] = bundles / (fused.LANES // width * keys * keys)
    return found


def main():
    """Print the numbers beside those that `firth plan` uses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chips", nargs="+", choices=SLICES, default=list(SLICES))
    parser.add_argument("--keys", type=int, default=512)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rate", type=float, default=0.1, help="of dropout")
    args = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        os.environ["LIBTPU_INIT_ARGS"] = flags  # read when the first topology is described
        for chip in args.chips:
            for name, found in cycles(chip, args.keys, args.width, args.rate, Path(folder)).items():
                planned = kernels.CYCLES[name][chip]
                print(f"{chip:4s} {name:25s} {found:.5f} cycles a score, planned {planned:.5f}")


if __name__ == "__main__":
    main()
