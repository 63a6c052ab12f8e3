"""Runs on questions with choices: the parts of a run, what it measures, and that it learns."""

import json

import jax
import numpy as np
import pytest
from helpers.choosing import random_encoder, towns, write_jsonl, write_race
from helpers.quick import jit

from firth import recipe
from firth.cli import main
from firth.errors import FirthError
from firth.models.model import bound
from firth.planning.forecast import shapes
from firth.run import experiment
from firth.run.evaluator import Heldout
from firth.training.partition import create_mesh


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a file of questions, RACE's folders, and an encoder with random weights."""
    folder = tmp_path_factory.mktemp("choices")
    random_encoder(folder)
    write_jsonl(folder / "train.jsonl", towns(24))
    known = [row for row in towns(60) if row["choices"][row["label"]] == "Oslo"]
    write_jsonl(
        folder / "oslo.jsonl", [row | {"context": f"text {i}"} for i, row in enumerate(known)]
    )
    for split in ("train", "dev", "test"):
        for level, answers in (("high", "AB"), ("middle", "BB"), ("middle", "DC")):
            options, questions = [["a", "b", "c", "d"]] * 2, ["who", "why"]
            name = answers  # of the file
            write_race(folder / "race" / split, level, name, questions, options, list(answers))
    return folder


def config_of(files, arg="task=towns", **changes):
    fields = {"data.length": 48, "batch_size": 4, "eval.batch_size": 4, "mesh.data": 1}
    fields |= {"data.train": str(files / "train.jsonl"), "model.dropout": 0.0} | changes
    fields |= {"model.attention_dropout": 0.0, "model.classifier_dropout": 0.0}
    return recipe.with_fields(
        recipe.read_recipe(f"finetune.py:{arg},init={files / 'encoder'}"), fields
    )


def built(config):
    return experiment.build(config, create_mesh(config.mesh, jax.devices()[:1]))


def measured(run, config, params, name="dev"):
    return Heldout(run, config, create_mesh(config.mesh, jax.devices()[:1])).measure(params, name)


def initial(run):
    return jit(run.model.init)(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]


def test_the_parts_of_a_run(files):
    config = config_of(files)
    run = built(config)
    assert run.task.kind == "choice" and run.best == "dev/accuracy"
    assert run.objective.heads == run.model.heads == ("choice",)
    batch = run.batch(0)
    assert batch["tokens"].shape[:2] == (4, 3) and batch["labels"].shape == (4,)
    assert initial(run)["choice"]["dense"]["kernel"].shape == (32, 1)
    assert run.overview[0].startswith("choice of 'context' and 'question' by 'label'")
    assert any("longest choice: accuracy" in line for line in run.overview)
    whole = {name: leaf.shape for name, leaf in shapes(config, run, 0).items()}
    assert whole["tokens"] == whole["mask"] == (4, 3, 48) and whole["labels"] == (4,)


def test_levels_are_measured_alone_and_together(files):
    changes = {"data.train": "", "data.dir": str(files / "race")}
    config = config_of(files, "task=race", **changes)
    run = built(config)
    found, predictions = measured(run, config, initial(run))
    high, middle = found["accuracy_high"], found["accuracy_middle"]
    assert predictions.shape == (6,) and found["accuracy"] == pytest.approx((high + 2 * middle) / 3)
    labels = np.array([0, 1, 1, 1, 3, 2])
    assert high == (predictions == labels)[:2].mean()
    assert middle == (predictions == labels)[2:].mean()


def test_a_small_encoder_learns_to_choose(files):
    """That Oslo is right, wherever it stands: rows, labels, loss and measure fit together."""
    places = {f"data.{split}": str(files / "oslo.jsonl") for split in ("train", "dev")}
    config = config_of(files, **places, batch_size=12)
    run = built(config)
    params, batch = initial(run), run.batch(0)

    def loss(params):
        return bound(run.model, lambda m: run.objective.losses(m, batch, train=False)[0])(params)

    def update(params, moment, square):
        gradient = jax.grad(lambda p: loss(p)["task"] / 12)(params)
        moment = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moment, gradient)
        square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g**2, square, gradient)
        step = jax.tree.map(lambda m, s: 3e-3 * m / (s**0.5 + 1e-6), moment, square)
        return jax.tree.map(lambda p, s: p - s, params, step), moment, square

    step, moment = jit(update), jax.tree.map(np.zeros_like, params)
    before, _ = measured(run, config, params)
    square = moment
    for _ in range(60):
        params, moment, square = step(params, moment, square)
    found, _ = measured(run, config, params)
    assert before["accuracy"] < 0.7 and found["accuracy"] == found["task_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"objective.both_orders": True}, "needs two texts, but task 'towns' has choices"),
        ({"data.length": 4}, "length=4: expected at least 5 for choices"),
        ({"data.choices": "options"}, r"train\.jsonl:1: no column 'options'"),
    ],
)
def test_fields_that_do_not_fit(files, changes, said):
    with pytest.raises(FirthError, match=said):
        built(config_of(files, **changes))


def test_a_run_and_the_commands_on_its_model(files, tmp_path, capsys, monkeypatch):
    """What a run measured of its dev file is what the model says of that file."""
    monkeypatch.chdir(tmp_path)
    path = files / "train.jsonl"
    argv = [f"--config=finetune.py:task=towns,init={files / 'encoder'},length=48", "--workdir=run"]
    argv += [f"--config.data.{split}={path}" for split in ("train", "dev")]
    argv += ["--config.batch_size=8", "--config.eval.batch_size=8", "--config.steps=4"]
    argv += ["--config.data.loader=thread", "--config.checkpoint.best="]
    assert main(["train", *argv]) == 0
    assert "longest choice: accuracy" in capsys.readouterr().err
    assert main(["evaluate", "--workdir=run", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(["evaluate", "--model=run", f"--data={path}", "--output=said.csv", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"]["accuracy"] == pytest.approx(first["dev/accuracy"])
    assert again["labels"] == ["0", "1", "2"] and again["baseline"].keys() == {
        "label",
        "accuracy",
        "longest",
    }
    assert (tmp_path / "run/predictions/dev.tsv").read_text().splitlines()[0] == "index\tprediction"
    assert main(["convert", "--from=run", "--to=published"]) == 0
    assert main(["predict", "--model=published", f"--input={path}", "--output=said.jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    said = (tmp_path / "run/predictions/dev.tsv").read_text().splitlines()[1:]
    assert [line["predicted_label"] for line in lines] == [line.split("\t")[1] for line in said]
    for line in lines:
        assert line["choice"] == line["choices"][int(line["predicted_label"])]
        assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    table = (tmp_path / "said.csv").read_text().splitlines()
    head = "context,question,choices,label,predicted_label,choice,p_0,p_1,p_2"
    assert table[0] == head and len(table) == 25
