"""One hour of one NVIDIA GPU: how fast is Firth there, and does attention by cuDNN hold?

    python experiments/gpu/run.py --out DIR [--stage NAME ...] [--tiny] [--minutes 9]

Each stage ends within --minutes. What is in DIR/results.jsonl already is not measured again, so the
same command goes on where it stopped, on the same machine or on another of the same kind. --tiny
runs every stage with two layers on a CPU, to show that it works. Exit status: 0 all that could be
measured is there, 1 a cell failed, 2 something is missing that you can mend, 75 time is over and
cells are left.
"""

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "step_time")]  # their modules import one another
import cells  # noqa: E402

STAGES = ("attention", "steps", "families", "inference", "pretrain")
NEEDED = {  # module: package
    "firth": "firth (pip install --no-deps --no-build-isolation -e .)",
    "jax": "jax[cuda]",
    "flax": "flax",
    "optax": "optax",
    "orbax": "orbax-checkpoint",
    "ml_collections": "ml_collections (a pure wheel; it needs absl-py and PyYAML)",
    "absl": "absl-py (a pure wheel)",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "transformers": "transformers",
}
MORE_TIME = 75
DEVICE = """
import json, jax, torch
found = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "torch": torch.__version__}
print(json.dumps([jax.default_backend(), found]))
"""


def missing() -> list[str]:
    """A line for each package that is not installed."""
    return [
        f"missing: {package}"
        for module, package in NEEDED.items()
        if importlib.util.find_spec(module) is None
    ]


def device(tiny: bool) -> dict:
    """{"device", "jax", "torch"} that results are of; raises LookupError without a GPU.

    A process of its own looks: one that has seen a GPU through JAX holds most of its memory.
    """
    done = subprocess.run([sys.executable, "-c", DEVICE], capture_output=True, text=True)
    if done.returncode:
        raise LookupError(f"JAX finds no device: {(done.stderr.splitlines() or ['?'])[-1]}")
    backend, found = json.loads(done.stdout.splitlines()[-1])
    if not tiny and backend != "gpu":
        raise LookupError(
            f"JAX sees no GPU but {found['device']}; --tiny tries the stages on a CPU"
        )
    return found


def stage_module(name: str):
    """The module of a stage: `cells(tiny, rounds)` and `measure(cell, args)`, and perhaps `lacks`.

    `lacks(args)` says why the stage cannot be measured, or "".
    """
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", HERE / f"{name}_stage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(out: Path, tiny: bool) -> None:
    """Set what every process of a cell inherits: the platform, and caches of compiled programs."""
    if tiny:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for name, folder in (
        ("JAX_COMPILATION_CACHE_DIR", "jax"),
        ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ):
        os.environ.setdefault(name, str(out / "cache" / folder))


def options(args) -> list[str]:
    """The arguments that the process of a cell needs, too."""
    given = [f"--pretrain-minutes={args.pretrain_minutes}"]
    given += ["--corpus", *(str(path) for path in args.corpus)] if args.corpus else []
    return given + ([f"--glue={args.glue}"] if args.glue else [])


def main() -> int:
    """The command, and with --cell one cell of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for results.jsonl, logs and caches")
    add("--stage", nargs="+", choices=STAGES, default=STAGES)
    add("--tiny", action="store_true", help="two layers on a CPU, in seconds")
    add("--minutes", type=float, default=9, help="that a stage may take")
    add("--rounds", type=int, default=3)
    add("--corpus", nargs="+", type=Path, help="text of the pretraining stage")
    add("--glue", type=Path, help="folder with SST-2 and CoLA, as GLUE distributes them")
    add("--pretrain-minutes", type=float, default=20, help="that each pretraining may take")
    add("--cell", type=json.loads, help=argparse.SUPPRESS)
    add("--seconds", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = args.out.resolve()
    environment(out, args.tiny)
    if args.cell is not None:
        args.out = out
        found = stage_module(args.stage[0]).measure(args.cell, args)
        if found is None:
            return MORE_TIME
        print(json.dumps(found))
        return 0
    if min(args.minutes, args.pretrain_minutes) <= 0 or args.rounds < 1:
        parser.error("--minutes should be above 0 and --rounds at least 1")
    for path in (*(args.corpus or ()), *([args.glue] if args.glue else ())):
        if not path.exists():
            parser.error(f"{path} does not exist; expected text for --corpus, a folder for --glue")
    if lines := missing():
        print("\n".join(lines), file=sys.stderr)
        return 2
    try:
        out.mkdir(parents=True, exist_ok=True)
        found = device(args.tiny)
    except (LookupError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found), flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cell that runs ends first
    late = failed = 0
    for name in args.stage:
        stage = stage_module(name)
        if why := getattr(stage, "lacks", lambda _: "")(args):
            print(f"{name}: skipped: {why}", flush=True)
            continue
        wanted = stage.cells(args.tiny, 1 if args.tiny else args.rounds)
        wanted = [{**cell, "device": found["device"]} for cell in wanted]
        deadline = time.monotonic() + 60 * args.minutes
        counts = cells.run(name, wanted, out, deadline, args.tiny, options(args))
        late, failed = late + counts[0], failed + counts[1]
    return 1 if failed else MORE_TIME if late else 0


if __name__ == "__main__":
    sys.exit(main())
