"""Whole runs of every family but BERT: killed, resumed, exchanged, fine-tuned, evaluated."""

import functools
import json

import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.runs import arguments, assert_same_bytes, finish, logged, struck

from firth.cli import main
from firth.errors import FirthError
from firth.inference import encoder
from firth.weights.read import read_model

STEPS = 50
ELECTRA = {"model.embedding_size": 16}
ANY_LENGTH = {"model.max_length": None}  # families without a position table
NOT_RECURRENT = {  # fields of Transformers and of Adam
    f"model.{name}": None
    for name in ("max_length", "num_heads", "intermediate_size", "attention_dropout")
} | {"optimizer.b2": None, "optimizer.bias_correction": None, "schedule.warmup": None}
RUNS = {  # name -> (recipe, changes)
    "roberta": ("roberta.py:tiny,length=32", {}),
    "albert": ("albert.py:tiny,length=32", ELECTRA),
    "electra": ("electra.py:tiny,length=32,sharing=embeddings", ELECTRA),
    "all_tokens": ("electra.py:tiny,length=32,variant=all_tokens,sharing=embeddings", ELECTRA),
    "modernbert": ("modernbert.py:tiny,length=32", {}),
    "distilbert": ("distilbert.py:tiny,length=32,layers=0-1", {}),
    "rtd on roberta": (
        "roberta.py:tiny,length=32",
        {"objective.name": "rtd", "objective.mask_specials": False},
    ),
    "xlnet": ("xlnet.py:tiny,length=32", ANY_LENGTH | {"accumulate": 2, "schedule.lr": 1e-4}),
    "xlnet without memory": ("xlnet.py:tiny,length=32,memory=0", ANY_LENGTH),
    "transformer_xl": ("transformer_xl.py:tiny,length=16", ANY_LENGTH),
    # What the published layout has no place for: another width of the MLP, scores of positions.
    "gpt": (
        "gpt.py:tiny,length=16",
        {"model.intermediate_size": 128, "model.softmax_over_all": False},
    ),
    "gpt2": ("gpt2.py:tiny,length=16", {}),
    "lstm": (
        "lstm.py:tiny,length=16",
        NOT_RECURRENT | {"schedule.lr": 5.0, "model.state_dropout": 0.1},
    ),
}
UNPUBLISHED = ("transformer_xl", "lstm")
# Two networks, and a memory: the others have no part of their own to lose. What recurrent ones
# carry, test_ulmfit.py and test_plateau_runs.py restore, too.
IN_CI = ("electra", "xlnet")


def command(store, workdir, name, teacher=None, **more):
    recipe, changes = RUNS[name]
    own = {"steps": STEPS, "accumulate": 1, "eval.every": 25, "schedule.lr": 1e-3}
    changes = own | changes | more
    if name == "distilbert":
        recipe += f",teacher={teacher}"
    return arguments(store, workdir, recipe, **changes)


@pytest.fixture(scope="module")
def teacher(store, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("teacher") / "run"
    assert main(["train", *arguments(store, workdir, steps=4, eval__every=4)]) == 0
    return workdir


@pytest.fixture(scope="module")
def trained(store, teacher, tmp_path_factory):
    """`trained(name)` is a workdir trained in one go, once a name."""

    @functools.cache
    def train(name):
        workdir = tmp_path_factory.mktemp("run") / "whole"
        finish(command(store, workdir, name, teacher))
        return workdir

    return train


@pytest.fixture(params=with_each_change(IN_CI, RUNS))
def run(request, trained, store, teacher):
    """(name, a workdir trained in one go, the command of another)."""
    name = request.param
    return name, trained(name), lambda other: command(store, other, name, teacher)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(run, tmp_path):
    _, whole, argv = run
    struck(argv(tmp_path), tmp_path, STEPS)
    finish(argv(tmp_path))
    assert_same_bytes(whole, tmp_path, STEPS)
    assert logged(whole) == logged(tmp_path)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("run", ["xlnet", "transformer_xl"], indirect=True)
def test_eight_devices_equal_one(run, tmp_path):
    """Memory is cut over the devices like the rows that it belongs to; BERT's covers the others."""
    _, whole, argv = run
    mesh = [f"--config.mesh.{axis}=2" for axis in ("data", "fsdp", "tensor")]
    finish([*argv(tmp_path), *mesh], JAX_NUM_CPU_DEVICES="8")
    for one, other in zip(logged(whole), logged(tmp_path), strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_allclose(one[key], other[key], rtol=2e-3, atol=2e-4, err_msg=key)


@pytest.mark.slow
def test_it_learns(run):
    _, whole, _ = run
    losses = [line["train/loss"] for line in logged(whole) if "train/loss" in line]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_it_goes_out_and_comes_back(run, tmp_path):
    name, whole, _ = run
    if name in UNPUBLISHED:
        assert main(["convert", "--from", str(whole), "--to", str(tmp_path / "out")]) == 2
        return
    assert main(["convert", "--from", str(whole), "--to", str(tmp_path / "out")]) == 0
    there, back = read_model(whole), read_model(tmp_path / "out")
    kept = [head for head in there.heads if head in back.heads]
    assert kept == [
        h for h in there.heads if h not in ("copy",) and (name, h) != ("rtd on roberta", "rtd")
    ]
    tokens = np.arange(5, 25).reshape(2, 10)
    before, after = (encoder.Encoder(saved, heads=kept)(tokens=tokens) for saved in (there, back))
    np.testing.assert_allclose(before.hidden, after.hidden, atol=1e-6)
    for head in kept:
        np.testing.assert_allclose(before.logits[head], after.logits[head], atol=1e-5)


@pytest.mark.slow
def test_a_generator_is_a_model_of_its_own(run, tmp_path):
    name, whole, _ = run
    if "generator" not in json.loads((whole / "model.json").read_text()) or name not in (
        "electra",
        "all_tokens",
        "rtd on roberta",
    ):
        with pytest.raises(FirthError, match="trained no generator"):
            read_model(whole, "generator")
        return
    out = tmp_path / "generator"
    argv = ["convert", "--from", str(whole), "--to", str(out), "--part", "generator"]
    if name == "rtd on roberta":  # its layout knows no embeddings wider than the layers
        assert main(argv) == 2
        assert not out.exists()
        return
    assert main(argv) == 0
    saved = read_model(out)
    assert saved.heads == ("mlm",) and saved.spec["hidden_size"] == 8
    word = read_model(whole).params["encoder"]["word"]["embedding"]
    np.testing.assert_array_equal(saved.params["encoder"]["word"]["embedding"], word)


@pytest.mark.slow
def test_it_is_fine_tuned_and_evaluated_by_the_commands_of_bert(run, tmp_path):
    _, whole, _ = run
    rng = np.random.default_rng(0)
    for split, rows in (("train", 64), ("dev", 16)):
        lines = ["one,two,label"]
        for _ in range(rows):
            label, word = rng.integers(2), rng.choice(["bad", "good"])
            second = ("the dog sat", "a cat sat")[label]  # of which the first text says nothing
            lines.append(f"the film was {word},{second},{('no', 'yes')[label]}")
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    workdir = tmp_path / "tuned"
    argv = [
        f"--config=finetune.py:task=custom,init={whole},length=32",
        f"--workdir={workdir}",
        *(f"--config.data.{split}={tmp_path}/{split}.csv" for split in ("train", "dev")),
        "--config.data.text=one,two",
        "--config.data.label=label",
        "--config.batch_size=16",
        "--config.epochs=30.0",
        "--config.eval.epochs=10.0",
        "--config.schedule.lr=3e-3",
        "--config.progress=False",
        "--config.data.loader=thread",
    ]
    finish(argv)
    assert main(["evaluate", "--workdir", str(workdir)]) == 0
    found = json.loads((workdir / "evaluation.json").read_text())
    assert found["dev/accuracy"] >= 0.9
    # Random weights would learn it, too. Those of words that the task has not are only decayed.
    before, after = (
        read_model(path).params["encoder"]["word"]["embedding"] for path in (whole, workdir)
    )
    untouched = np.abs(after - before).max(1) < 0.01 * np.abs(before).max(1)
    assert 0.5 < untouched.mean() < 1
    if run[0] in UNPUBLISHED:
        return
    assert main(["convert", "--from", str(workdir), "--to", str(tmp_path / "out")]) == 0
    assert read_model(tmp_path / "out").labels == ("no", "yes")
