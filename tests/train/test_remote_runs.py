"""Whole runs with store and workdir at a URL: killed, gone on with elsewhere, read from there."""

import signal
import time

import pytest
from helpers.runs import arguments, assert_same_bytes, logged, make_store, start

import firth
from firth.run.evaluator import evaluate


@pytest.mark.slow
def test_killed_here_and_finished_elsewhere_with_the_same_bytes(tmp_path, monkeypatch):
    store = f"file://{make_store(tmp_path)}"
    whole, far = tmp_path / "whole", tmp_path / "bucket" / "run"
    undisturbed = start(arguments(store, whole), FIRTH_CACHE=str(tmp_path / "a"))
    for machine in ("b", "c"):
        run = start(arguments(store, f"file://{far}"), FIRTH_CACHE=str(tmp_path / machine))
        seals = len(list(far.glob("seals/*.json")))
        end = time.monotonic() + 300
        while len(list(far.glob("seals/*.json"))) < seals + 2:
            assert run.poll() is None and time.monotonic() < end, run.stderr.read()
            time.sleep(0.01)
        run.kill()
        assert run.wait() == -signal.SIGKILL
        assert not (far / "checkpoints" / "60").exists()
    run = start(arguments(store, f"file://{far}"), FIRTH_CACHE=str(tmp_path / "d"))
    assert run.wait() == 0, run.stderr.read()
    assert undisturbed.wait() == 0, undisturbed.stderr.read()
    assert_same_bytes(whole, far)
    assert logged(whole) == logged(far)
    steps = {p.name for p in (whole / "checkpoints").glob("[0-9]*")}
    assert steps == {p.name for p in (far / "checkpoints").glob("[0-9]*")}

    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "e"))
    assert evaluate(f"file://{far}") == evaluate(whole)
    assert (far / "evaluation.json").read_bytes() == (whole / "evaluation.json").read_bytes()
    text = ["the vase broke ."]
    near, remote = firth.load(whole)(text).hidden, firth.load(f"file://{far}")(text).hidden
    assert near.tobytes() == remote.tobytes()
