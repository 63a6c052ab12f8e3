"""What experiments share: lines of results, each measured once, and the runs they are of."""

import dataclasses
import json
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from commands import call, settings


def read_results(path: Path) -> list[dict]:
    """The lines of a file of results, which need not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure_once(path: Path, named: dict, function: Callable[[], dict]) -> None:
    """Append a line, `named` and what the function returns, unless `named` has one already."""
    if any(named.items() <= line.items() for line in read_results(path)):
        return
    began = time.time()
    line = named | function() | {"seconds": round(time.time() - began)}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


def seconds_spent(workdir: Path) -> float:
    """What the starts of a run have spent, all together, without the time between them.

    0 of a run without an account, such as one that counts.
    """
    path = workdir / "goodput.json"
    spent = json.loads(path.read_text())["seconds"] if path.exists() else {}
    return sum(value for kind, value in spent.items() if kind != "dead")


def fine_tune(
    recipe: str,
    fields: dict,
    folder: Path,
    seed: int,
    also: Callable[[Path], dict] = lambda workdir: {},
) -> dict:
    """Train a seed, or go on with it; {split: {metric: points}} of its best checkpoint.

    "dev_baseline" and "test_baseline" are those of a constant answer. `also` is called with the
    seed's workdir and returns further splits. Compiled programs stay beside the folder, for other
    runs; the checkpoints go. A run that fails ends this process too.
    """
    if not (folder / "summary.json").exists():
        fields = fields | {"seeds": str(seed), "checkpoint.keep": 1, "curves": False}
        compiled = {
            "JAX_COMPILATION_CACHE_DIR": str((folder.parent / "compiled").absolute()),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
        }
        where = f"--workdir={folder}"
        call("train", f"--config={recipe}", *settings(fields), where, **compiled)
    workdir = folder / f"seed-{seed}"
    found = also(workdir)
    for part in ("checkpoints", "compiled"):
        shutil.rmtree(workdir / part, ignore_errors=True)
    for name, value in json.loads((folder / "summary.json").read_text()).items():
        split, _, metric = name.partition("/")
        found.setdefault(split, {})[metric] = points(value["mean"])
    path = workdir / "baselines.json"
    for split, values in json.loads(path.read_text()).items() if path.exists() else ():
        found[f"{split}_baseline"] = {metric: points(value) for metric, value in values.items()}
    return found


def random_body(source: str, folder: Path) -> Path:
    """A Firth directory of a model's body and tokenizer with random weights."""
    if not folder.exists():
        import jax
        import numpy as np

        from firth.weights.read import read_model
        from firth.weights.write import write_firth

        saved = read_model(source)
        variables = saved.model().init(jax.random.key(0), np.zeros((1, 8), np.int32))
        params = jax.device_get(variables["params"])
        write_firth(folder, dataclasses.replace(saved, params=params, published=None))
    return folder


def points(value: float) -> float:
    """A share in points."""
    return round(100 * value, 2)


def shown(values: list[float]) -> str:
    """A mean and the deviation of its seeds."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"
