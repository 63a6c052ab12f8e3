"""How long is a training step at an earlier commit, and now?

    python experiments/step_time/revisions.py --before COMMIT [--recipes minilm,bert.py:mini] \\
        [--batch 32] [--length 128] [--vocab 30522] [--dtype float32]

Both sides take turns, each in a process of its own; the later one is the tree that this file is in.
"minilm" is the fine-tuning of a classifier over MiniLM's body (6 x 384). Prints medians and the
median of the ratios of each round.
"""

import argparse
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SIDES = ("before", "now")


def main() -> int:
    """Time both sides of each recipe, or be a side."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--before", required=True, help="a commit")
    add("--recipes", default="minilm,bert.py:mini")
    add("--batch", type=int, default=32)
    add("--length", type=int, default=128)
    add("--vocab", type=int, default=30522)
    add("--dtype", default="float32", help="of products")
    add("--rounds", type=int, default=9)
    add("--side", choices=SIDES, help=argparse.SUPPRESS)
    add("--source", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return be_a_side(args)
    with tempfile.TemporaryDirectory() as folder:
        unpack(args.before, folder)
        for recipe in args.recipes.split(","):
            compare(args, recipe, Path(folder) / "src")
    return 0


def unpack(commit: str, folder: str) -> None:
    """The sources of a commit."""
    command = ["git", "-C", str(ROOT), "archive", commit, "src"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(done.returncode)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def compare(args, recipe: str, earlier: Path) -> None:
    """Print the times of a step at both commits."""
    from apart import Sides

    fields = {"before": args.before, "recipes": recipe, "source": earlier}
    fields |= {name: getattr(args, name) for name in ("batch", "length", "vocab", "dtype")}
    sides = Sides(__file__, SIDES, [f"--{name}={value}" for name, value in fields.items()])
    if len(set(sides.said.values())) != len(SIDES):
        raise SystemExit(f"both sides run {sides.said['now']}")
    sides.in_turn(2)  # to warm up
    before, now = sides.in_turn(args.rounds).values()
    sides.close()
    ratios = [one / other for one, other in zip(before, now, strict=True)]
    print(
        f"{recipe:<20} {statistics.median(now):.3f} s, before {statistics.median(before):.3f} s: "
        f"{statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})",
        flush=True,
    )


def be_a_side(args) -> int:
    """Run a step for each line of stdin, on the sources of the side."""
    if args.side == "before":
        sys.path.insert(0, args.source)
    from apart import answer
    from last_layer import step

    import firth
    from firth.distributed.allocator import keep_freed_memory

    keep_freed_memory()
    run = step(args.recipes, args.batch, args.length, args.vocab, args.dtype)
    run()
    answer(lambda line: run(), firth.__file__)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "experiments"))
    raise SystemExit(main())
