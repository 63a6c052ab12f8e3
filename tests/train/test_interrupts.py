"""Ctrl-C in a real run: saved and ended with 130, and nothing of it in the way."""

import json
import signal
import time

from helpers.compiler import XLA_FLAGS
from helpers.runs import arguments, logged, start

CHANGES = {"steps": 100_000, "model.num_layers": 1, "eval.every": 0, "checkpoint.every": 0}


def test_ctrl_c_saves_and_ends_with_130(store, tmp_path):
    argv = arguments(store, tmp_path, **CHANGES, progress=None)
    process = start(argv, XLA_FLAGS=XLA_FLAGS)
    deadline = time.monotonic() + 120
    while not (tmp_path / "metrics.jsonl").exists() or not logged(tmp_path):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors and "once more ends at once" in errors
    (seal,) = (tmp_path / "seals").iterdir()
    assert f"stopped by Ctrl-C at step {seal.stem}, saved" in errors
    account = json.loads((tmp_path / "goodput.json").read_text())
    assert account["alive"] is not None and seal.stem in account["saved"]
