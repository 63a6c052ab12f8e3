"""Workdirs as runs leave them, made without training."""

import json
from pathlib import Path

FIELDS = {
    "seed": 0,
    "steps": 40,
    "until": 0,
    "batch_size": 8,
    "log_every": 5,
    "model": {"family": "bert", "dropout": 0.1},
    "data": {"store": "store", "length": 16},
    "objective": {"name": "mlm"},
    "schedule": {"lr": 1e-4},
    "checkpoint": {"best": "", "best_mode": "max"},
}
TASK = {
    "data": {"task": "rte", "length": 16},
    "objective": {"name": "finetune"},
    "steps": 0,
    "epochs": 3.0,
}


def make_workdir(
    folder: Path,
    *,
    command: str = "firth train --config=bert.py:tiny",
    fields: dict | None = None,
    entries: list[dict] | None = None,
    ended: str | None = "finished",
    best: str = "",
    steps: int | None = 40,
) -> Path:
    """A workdir of a run that has logged `entries`; `ended=None`: by a Firth that did not say."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(FIELDS | (fields or {})))
    lines = [f"command: {command}", "time: now"] + ([f"steps: {steps}"] if steps else [])
    (folder / "env.txt").write_text("\n".join(lines))
    (folder / "model.json").write_text(json.dumps({"best": best}))
    (folder / ".lock").touch()
    entries = journal() if entries is None else entries
    (folder / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    account = {"seconds": {}, "alive": None if ended == "finished" else 1.0}
    account |= {} if ended is None else {"ended": ended}
    (folder / "goodput.json").write_text(json.dumps(account))
    return folder


def journal(losses=(5.0, 4.0, 3.0, 3.5), every: int = 10, tokens: int = 128) -> list[dict]:
    """Entries every so many steps of `tokens` tokens: a training loss, and .5 above it held out.

    The steps take 100 ms each, and 30 s pass before the first.
    """
    found = []
    for number, loss in enumerate(losses, 1):
        step = number * every
        perf = {"perf/step_ms": 100.0, "perf/tokens_per_sec": tokens / 0.1}
        spent = {"step": 0.1 * step, "start": 30.0, "dead": 3600.0}
        perf |= {f"perf/seconds/{kind}": seconds for kind, seconds in spent.items()}
        found.append({"step": step, "train/mlm_loss": loss, "train/loss": loss + 1} | perf)
        found.append({"step": step, "eval/heldout/mlm_loss": loss + 0.5})
    return found
