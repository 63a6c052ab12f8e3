"""Whole runs that train a part: what moves, is kept, is read by others, and after a kill."""

import json
import re
import shutil

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers.labelled import make_labelled
from helpers.runs import assert_same_bytes, final_state, finish, logged, struck, trained

import firth
from firth.cli import main
from firth.inference.predictions.classifier import predict
from firth.weights.read import read_model

STEPS, RANK = 10, 2
FACTOR = re.compile(r"\['lora'\].*\['[ab]'\]$")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT in `init`, train.csv and dev.csv."""
    return make_labelled(
        tmp_path_factory.mktemp("lora"), ("text", "label"), num_layers=2, train=80, dev=24
    )


def command(folder, workdir, *more) -> list[str]:
    return [
        f"--config=finetune.py:init={folder}/init,length=16",
        f"--workdir={workdir}",
        *(f"--config.data.{split}={folder}/{split}.csv" for split in ("train", "dev")),
        *("--config.batch_size=16", "--config.epochs=2.0", "--config.data.loader=thread"),
        *("--config.schedule.lr=1e-2", "--config.eval.batch_size=8", "--config.curves=False"),
        f"--config.lora.rank={RANK}",
        *more,
    ]


@pytest.fixture(scope="module")
def ended(folder, tmp_path_factory):
    """(workdir, what was said) of a run of two epochs."""
    workdir = tmp_path_factory.mktemp("ended")
    return workdir, trained(command(folder, workdir))


def test_factors_and_the_head_are_trained_and_nothing_else_moves(folder, ended):
    workdir, said = ended
    state = final_state(workdir, STEPS)
    width, head = 36, 36 * 2 + 2
    own = {k: v for k, v in state.items() if k.startswith("['params']") and "lora" not in k}
    factors = {k: v for k, v in state.items() if k.startswith("['params']") and FACTOR.search(k)}
    assert len(factors) == 2 * 2 * 2  # A and B of two kernels of two layers
    trained = sum(leaf.size for leaf in factors.values()) + head
    assert trained == 4 * 2 * width * RANK + head
    total = sum(leaf.size for k, leaf in state.items() if k.startswith("['params']"))
    assert f"{trained:,} of {total:,} parameters are trained" in said
    moments = [k for k in state if "['mu']" in k or "['nu']" in k]
    assert moments and all(FACTOR.search(k) or "classifier" in k for k in moments)
    assert len(moments) == 2 * (len(factors) + 2)
    weights = flatten_dict(read_model(folder / "init").params)
    for path, weight in weights.items():
        if path[0] == "encoder":
            name = "['params']" + "".join(f"['{part}']" for part in path)
            assert own[name].tobytes() == np.asarray(weight).tobytes(), name
    assert all(np.abs(leaf).max() > 1e-3 for leaf in factors.values())  # B is no longer zero
    assert state["['params']['lora']['scale']"] == 16.0 / RANK


def test_others_see_merged_weights(ended, tmp_path):
    """Loaded, evaluated and converted it is the model that the run measured, and transformers'."""
    import torch
    import transformers

    workdir, _ = ended
    saved = read_model(workdir)
    assert set(saved.params) == {"encoder", "classifier"}
    state = final_state(workdir, saved.step)
    path = "['encoder']['stack']['layer_1']['attention']['query']['kernel']"
    a, b = (state[f"['params']['lora']{path}['{name}']"].astype(np.float64) for name in "ab")
    expected = state[f"['params']{path}"] + 16.0 / RANK * a @ b
    found = saved.params["encoder"]["stack"]["layer_1"]["attention"]["query"]["kernel"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found - state[f"['params']{path}"]).max() > 1e-3

    measured = [e for e in logged(workdir) if e["step"] == saved.step and "eval/dev/accuracy" in e]
    assert main(["evaluate", "--workdir", str(workdir)]) == 0
    again = json.loads((workdir / "evaluation.json").read_text())
    for name in ("dev/accuracy", "dev/task_loss"):
        np.testing.assert_allclose(again[name], measured[0][f"eval/{name}"], rtol=1e-5)

    texts = ["the cat sat on the mat", "dog ate food"]
    out = tmp_path / "published"
    assert main(["convert", "--from", str(workdir), "--to", str(out)]) == 0
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    with torch.no_grad():
        given = tokenizer(texts, return_tensors="pt", padding=True)
        theirs = model(**given).logits.softmax(-1).numpy()
    ours = predict(firth.load(workdir, heads=True), texts)
    names = [model.config.id2label[i] for i in range(2)]
    found = [[p.probabilities[name] for name in names] for p in ours]
    np.testing.assert_allclose(found, theirs, atol=1e-5)


def test_stopped_it_goes_on_to_the_same_bytes(folder, ended, tmp_path):
    argv = command(folder, tmp_path, "--config.checkpoint.every=3")
    saves = tmp_path / "checkpoints"
    trained(argv)
    for step in (STEPS, 9, 6):  # as if it had not come so far
        shutil.rmtree(saves / str(step))
    assert [path.name for path in saves.glob("[0-9]*")] == ["3"]
    trained(argv)
    assert_same_bytes(ended[0], tmp_path, STEPS)


@pytest.mark.slow
@pytest.mark.nightly
def test_killed_it_goes_on_to_the_same_bytes(folder, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    every = "--config.checkpoint.every=3"
    struck(command(folder, killed, every), killed, STEPS)
    for workdir in (straight, killed):
        finish(command(folder, workdir, every))
    assert_same_bytes(straight, killed, STEPS)


def test_a_target_that_matches_nothing_ends_the_run(folder, tmp_path, capsys):
    argv = command(folder, tmp_path / "run", "--config.lora.targets=atention/querry")
    assert main(["train", *argv]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "lora.targets" in x]
    assert "matches no kernel of this model; near it are" in line
    assert "attention/query/kernel" in line
    assert not (tmp_path / "run" / "config.json").exists()


def test_biases_and_the_head_alone_move(folder, tmp_path):
    argv = command(folder, tmp_path, "--config.freeze=encoder,!bias$", "--config.lora.rank=0")
    said = trained([*argv, "--config.steps=2"])
    assert "parameters are trained" in said
    state = final_state(tmp_path, 2)
    weights = flatten_dict(read_model(folder / "init").params)
    moved = 0
    for path, weight in weights.items():
        if path[0] == "encoder":
            now = state["['params']" + "".join(f"['{part}']" for part in path)]
            same = now.tobytes() == np.asarray(weight).tobytes()
            # The key's bias has no gradient but rounding: a softmax does not see it.
            assert same != (path[-1] == "bias") or path[-2] == "key", path
            moved += not same
    assert moved > 10
    moments = [k for k in state if "['mu']" in k]
    assert all("bias" in k or "classifier" in k for k in moments)


def test_an_item_that_matches_nothing_ends_the_run(folder, tmp_path, capsys):
    assert main(["train", *command(folder, tmp_path / "run", "--config.freeze=0-7")]) == 2
    said = capsys.readouterr().err
    assert "freeze: layer 2 is not there: this body has layers 0 to 1" in said


def test_a_run_without_a_gain_ends_early_and_keeps_its_best(folder, tmp_path, caplog, capsys):
    """At a rate of nearly zero no evaluation is better than the first; killed or not."""
    more = ("--config.schedule.lr=1e-12", "--config.eval.every=2", "--config.patience=2")
    argv, kept = (
        command(folder, tmp_path / "a", *more, "--config.checkpoint.keep=3"),
        tmp_path / "b",
    )
    said = trained(argv)
    reason = "dev/accuracy has not risen in the last 2 evaluations"
    assert f"stopped at step 6: {reason}" in said
    assert "dev, best checkpoint (step " in said
    told = [e for e in logged(tmp_path / "a") if "train/stopped" in e]
    assert told == [{"step": 6, "train/stopped": reason}]
    assert final_state(tmp_path / "a", 4)["['plateau']['since']"] == 1
    shutil.copytree(tmp_path / "a", kept)
    shutil.rmtree(kept / "checkpoints" / "6")  # as if it had not come so far
    assert f"stopped at step 6: {reason}" in trained(command(folder, kept, *more))
    assert_same_bytes(tmp_path / "a", kept, 6)
    with caplog.at_level("INFO", "firth"):
        assert main(["train", *argv]) == 0
    assert f"has stopped at step 6 ({reason}): nothing is left to do" in caplog.text
    assert main(["train", *argv, "--config.eval.every=1"]) == 2
    assert "eval.every: 2 there, 1 now" in capsys.readouterr().err


def test_a_balance_is_of_the_labels_of_train(folder, tmp_path):
    """The first loss of a run is the weighted mean; dev is measured without weights."""
    argv = command(folder, tmp_path / "a", "--config.steps=1", "--config.log_every=1")
    argv += ["--config.schedule.lr=1e-12", "--config.lora.rank=0"]
    trained([*argv, "--config.objective.class_weights=balanced"])
    trained([*argv[:1], f"--workdir={tmp_path}/b", *argv[2:]])
    (one, dev), (other, plain) = (
        [e for e in logged(tmp_path / name) if "train/loss" in e or "eval/dev/task_loss" in e]
        for name in "ab"
    )
    assert one["train/task_loss"] == other["train/task_loss"] == other["train/loss"]
    assert one["train/loss"] != other["train/loss"]
    assert dev["eval/dev/task_loss"] == pytest.approx(plain["eval/dev/task_loss"], rel=1e-6)
