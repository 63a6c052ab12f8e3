"""What each layout of BERT-base on eight devices sends and keeps, from the compiled steps.

    python experiments/shardings/run.py [--platform tpu]

CPU devices are simulated and nothing is computed; `--platform tpu` needs the `libtpu` package but
no TPU, and takes minutes a layout. Layers are scanned, which changes no byte that is sent.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path

LAYOUTS = {
    "data": dict(data=8),
    "zero1": dict(data=8, zero1=True),
    "fsdp": dict(data=1, fsdp=8),
    "tensor": dict(data=1, tensor=8),
    "data x tensor": dict(data=2, tensor=4),
}
ROWS, LENGTH = 64, 128


def measure(mesh: dict, devices) -> dict:
    """Bytes by collective and axis, bytes of state a device, and seconds to compile."""
    import jax
    from jax.sharding import NamedSharding

    from firth import recipe
    from firth.planning.compiler import hlo
    from firth.run.outline import outline
    from firth.run.program import lay_out
    from firth.training import partition

    config = recipe.read_recipe(f"bert.py:base,length={LENGTH}")
    config.batch_size, config.model.scan = ROWS, True
    with config.unlocked():
        config.mesh.update(mesh)
    over = partition.create_mesh(config.mesh, devices)
    run = outline(config)
    program = lay_out(run.model, run.objective, config, run.steps, over)
    rows = NamedSharding(over, partition.BATCH)
    batch = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)
        for name, array in run.batch.items()
    }
    began = time.monotonic()
    compiled = program.step.lower(program.state, batch).compile()
    sent = hlo.totals(hlo.collectives(compiled.as_text(), over.shape))
    state = jax.tree.leaves(program.state)
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(program.state.params)),
        "sent": {f"{kind} {' '.join(axes)}": total for (kind, axes), (_, total) in sent.items()},
        "state": sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in state
        ),
        "seconds": round(time.monotonic() - began, 1),
    }


def main():
    """Measure every layout, print it and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--platform", choices=("cpu", "tpu"), default="cpu")
    parser.add_argument("--topology", default="v5e:2x4")
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--commit", default="")
    args = parser.parse_args()
    os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    devices = jax.devices()
    if args.platform == "tpu":
        from jax.experimental import topologies

        devices = topologies.get_topology_desc(platform="tpu", topology_name=args.topology).devices
    for name in args.layouts:
        found = measure(LAYOUTS[name], devices)
        entry = {"layout": name, "platform": args.platform, "rows": ROWS, "length": LENGTH}
        entry |= {"commit": args.commit} | found
        print(json.dumps(entry), flush=True)
        with (Path(__file__).parent / "results.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
