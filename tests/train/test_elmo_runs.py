"""Whole runs of ELMo: in parts and killed, with the same bytes; exported, read again, evaluated."""

import json

import numpy as np
import pytest
from helpers.runs import arguments, assert_same_bytes, finish, logged, struck

import firth
from firth.cli import main
from firth.data.tagging.files import read_sentences
from firth.run.tagging.features import Features

pytest.importorskip("h5py")
STEPS = 24
FIELDS = dict.fromkeys(
    [
        *(f"model.{n}" for n in ("max_length", "num_heads", "intermediate_size")),
        *("model.attention_dropout", "optimizer.b2", "optimizer.bias_correction"),
        "schedule.warmup",
    ]
) | {
    "steps": STEPS,
    "eval.every": 12,
    "schedule.lr": 0.1,
    "model.cell_size": 24,
    "objective.samples": 50,
}


def command(store, workdir, **more):
    return arguments(store, workdir, "elmo.py:tiny,length=8", **FIELDS | more)


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """A workdir trained in one go."""
    workdir = tmp_path_factory.mktemp("elmo") / "whole"
    assert main(["train", *command(store, workdir)]) == 0
    return workdir


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_in_two_parts_ends_with_the_same_bytes_and_learns(store, whole, tmp_path):
    for until in (7, 0):
        assert main(["train", *command(store, tmp_path / "parts", until=until)]) == 0
    assert_same_bytes(whole, tmp_path / "parts", STEPS)
    held = [line for line in logged(whole) if "eval/heldout/lm_loss" in line]
    assert held[-1]["eval/heldout/lm_loss"] < held[0]["eval/heldout/lm_loss"]


def test_a_run_is_exported_read_again_and_evaluated(store, whole, tmp_path, capsys):
    assert main(["convert", "--from", str(whole), "--to", str(tmp_path / "out")]) == 0
    assert {"options.json", "weights.hdf5"} <= {p.name for p in (tmp_path / "out").iterdir()}
    texts = ["the dog sat", "a strange word"]
    before, after = firth.load(whole), firth.load(tmp_path / "out", heads=["bilm"])
    found, again = before(texts), after(texts)
    np.testing.assert_array_equal(found.hidden, again.hidden)
    assert found.hidden.shape == (3, 2, 3, 32) and not found.logits
    words = before.saved.spec["vocab_size"]
    assert again.logits["bilm"].shape == (2, 3, 2, words)
    (tmp_path / "new.txt").write_text("\n".join(texts))
    sentences = read_sentences(tmp_path / "new.txt", tagged=False)
    of_words = found.hidden.transpose(1, 2, 0, 3).reshape(6, 3, 32)
    for source in (whole, tmp_path / "out"):  # the run's vocabulary does not matter
        vectors = Features(str(source), "mix")(sentences)[np.arange(6)]
        np.testing.assert_allclose(vectors, of_words, rtol=1e-5, atol=1e-5)
    capsys.readouterr()
    assert main(["evaluate", "--workdir", str(whole)]) == 0
    measured = json.loads((whole / "evaluation.json").read_text())
    for name in ("forward", "backward"):
        loss = measured[f"heldout/{name}_loss"]
        assert measured[f"heldout/{name}_perplexity"] == pytest.approx(np.exp(loss))
    assert "heldout/backward_perplexity" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(store, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    struck(command(store, killed), killed, STEPS)
    for workdir in (whole, killed):
        finish(command(store, workdir))
    assert_same_bytes(whole, killed, STEPS)
