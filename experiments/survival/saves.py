"""For how long does an asynchronous save hold up the loop, with the state of a BERT-base?

    python experiments/survival/saves.py --folder /tmp/saves [--recipe bert.py:base] [--scan]

The state is laid out as in training, parameters and both moments; a jitted function that takes its
memory stands in for the step. Prints how long `Checkpoints.save` took, in milliseconds of wall time
and of CPU time of the loop's thread (which other jobs change less), and how long the save went on.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from firth import recipe
from firth.run import outline
from firth.run.program import lay_out
from firth.training import partition
from firth.training.checkpoint import Checkpoints


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--recipe", default="bert.py:base")
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--scan", action="store_true", help="layers stacked, as model.scan=True")
    args = parser.parse_args()
    config = recipe.with_fields(recipe.read_recipe(args.recipe), {"model.scan": args.scan})
    config.batch_size = jax.device_count()
    run = outline.outline(config)
    mesh = partition.create_mesh(config.mesh)
    program = lay_out(run.model, run.objective, config, 1000, mesh)
    fill = jax.jit(
        lambda: jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), program.state),
        out_shardings=program.shardings,
    )
    step = jax.jit(
        lambda state: jax.tree.map(lambda x: x + x.astype(x.dtype), state),
        donate_argnums=0,
        out_shardings=program.shardings,
    )
    state = step(fill())
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    saves = Checkpoints(args.folder, keep=1)
    found = []
    for number in range(1, args.saves + 1):
        state = jax.block_until_ready(step(state))
        wall, cpu = time.perf_counter(), time.thread_time()
        saves.save(number, state.parts(), {"window": {}})
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        began = time.perf_counter()
        saves.wait()
        found.append((1e3 * wall, 1e3 * cpu, time.perf_counter() - began))
        print("save {}: {:.0f} ms, CPU {:.0f} ms, behind {:.1f} s".format(number, *found[-1]))
    saves.close()
    wall, cpu, behind = (statistics.median(column) for column in zip(*found, strict=True))
    print(
        json.dumps(
            {
                "recipe": args.recipe,
                "arrays": len(jax.tree.leaves(state)),
                "state_bytes": size,
                "blocked_ms": round(wall),
                "blocked_cpu_ms": round(cpu),
                "behind_s": round(behind, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
