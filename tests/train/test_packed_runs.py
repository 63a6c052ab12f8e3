"""Fine-tuning in packed rows, from the command to predictions."""

import csv
import json
import shutil

import numpy as np
import pytest
from helpers.labelled import make_labelled
from helpers.runs import assert_same_bytes, logged, trained

from firth.cli import main
from firth.run import experiment


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT in `init`, and train.csv and test.csv of short texts."""
    return make_labelled(
        tmp_path_factory.mktemp("packed"), ("text", "label"), num_layers=1, train=300, test=12
    )


def train(folder, workdir, *more, status=0, epochs=2.0) -> str:
    """`firth train` in packed rows at a constant rate; returns what it said."""
    argv = [
        f"--config=finetune.py:init={folder}/init,length=32",
        f"--workdir={workdir}",
        f"--config.data.train={folder}/train.csv",
        f"--config.data.test={folder}/test.csv",
        f"--config.epochs={epochs}",
        *(
            "--config.data.packed=True",
            "--config.batch_size=32",
            "--config.eval.batch_size=16",
        ),
        *(
            "--config.log_every=1",
            "--config.checkpoint.keep=19",
            "--config.data.loader=thread",
            "--config.checkpoint.every=1",
        ),
        *("--config.schedule.name=constant", "--config.schedule.warmup=0", "--config.curves=False"),
        *more,
    ]
    return trained(argv, status)


@pytest.fixture(scope="module")
def ended(folder, tmp_path_factory):
    """(workdir, what was said) of two epochs."""
    workdir = tmp_path_factory.mktemp("ended")
    return workdir, train(folder, workdir)


def predicted(path) -> list[str]:
    return [row.split("\t")[1] for row in path.read_text().splitlines()[1:]]


def test_what_a_batch_holds_is_said_and_logged(ended):
    workdir, said = ended
    assert "packed: a batch of 8 rows of 32 tokens has about 30 examples, and" in said
    assert "18 steps of 8 x 32 tokens" in said  # what the stated memory is of
    steps = [line for line in logged(workdir) if "train/loss" in line]
    assert len(steps) == 18  # two epochs of 270 examples
    assert np.mean([line["train/pad_fraction"] for line in steps]) < 0.12


def test_predictions_are_those_of_rows_alone_in_the_order_of_the_file(folder, ended, tmp_path):
    """The file of the run, `predict` without and with packed rows, and their measures."""
    workdir, _ = ended
    found = {}
    for more in ((), ("--packed",)):
        output = tmp_path / f"{len(more)}.csv"
        argv = ["predict", f"--model={workdir}", f"--input={folder}/test.csv"]
        assert main([*argv, f"--output={output}", *more]) == 0
        with output.open() as file:
            found[more] = list(csv.DictReader(file))
    assert [row["predicted_label"] for row in found[()]] == predicted(
        workdir / "predictions" / "test.tsv"
    )
    for one, other in zip(found[()], found["--packed",], strict=True):
        assert one["text"] == other["text"]
        assert one["predicted_label"] == other["predicted_label"]
        assert float(one["p_feline"]) == pytest.approx(float(other["p_feline"]), abs=2e-6)
    assert main(["evaluate", f"--workdir={workdir}"]) == 0
    own = json.loads((workdir / "evaluation.json").read_text())["test/accuracy"]
    right = [row["label"] == row["predicted_label"] for row in found[()]]
    assert own == pytest.approx(np.mean(right))


def test_a_file_is_measured_alike_packed(folder, ended, capsys):
    argv = ["evaluate", f"--model={ended[0]}", f"--data={folder}/test.csv", "--json"]
    capsys.readouterr()
    found = []
    for more in ((), ("--packed",)):
        assert main([*argv, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_a_test_split_without_labels_is_predicted(folder, ended, tmp_path):
    """As GLUE's are: no measure, and the predictions that the same texts have with labels."""
    unlabelled = tmp_path / "test.csv"
    with (folder / "test.csv").open() as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    with unlabelled.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    workdir = tmp_path / "run"
    train(folder, workdir, f"--config.data.test={unlabelled}")
    assert not any("eval/test/accuracy" in line for line in logged(workdir))
    for run in (workdir, ended[0]):
        assert main(["evaluate", f"--workdir={run}"]) == 0
    own, labelled = (predicted(run / "predictions" / "test.tsv") for run in (workdir, ended[0]))
    assert own == labelled


def test_stopped_it_goes_on_to_the_same_bytes(folder, ended, tmp_path):
    shutil.copytree(ended[0], tmp_path, dirs_exist_ok=True)
    for step in range(4, 19):  # as if it had not come so far
        shutil.rmtree(tmp_path / "checkpoints" / str(step), ignore_errors=True)
    train(folder, tmp_path)
    assert_same_bytes(ended[0], tmp_path, 18)


def test_micro_batches_make_the_same_steps(folder, ended, tmp_path):
    """Without dropout, two parts of a batch add up to its loss, whatever each holds."""
    still = [f"--config.model.{name}=0.0" for name in ("dropout", "attention_dropout")]
    still += ["--config.model.classifier_dropout=0.0", "--config.steps=2", "--config.batch_size=64"]
    losses = []
    for parts in (1, 2):
        workdir = tmp_path / f"{parts}"
        train(folder, workdir, *still, f"--config.accumulate={parts}")
        losses.append([line["train/loss"] for line in logged(workdir) if "train/loss" in line])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_both_orders_of_a_pair_are_refused(folder, tmp_path):
    more = ["--config.objective.both_orders=True", "--config.data.text=text,label"]
    said = train(folder, tmp_path, *more, status=2)
    assert "packed rows cannot be read in both orders of their pairs" in said


def test_attention_is_tried_with_blocks(folder, tmp_path, monkeypatch):
    """The kernels of a GPU must know the texts of a row before a run trains with them."""
    from firth import train as loop

    asked = []

    def choose(fields, *more):
        asked.append(more)
        return "plain"

    def build(*args, **options):
        raise experiment.FirthError("enough")

    monkeypatch.setattr(loop, "choose_attention", choose)
    monkeypatch.setattr(loop.experiment, "build", build)
    train(folder, tmp_path / "a", status=2)
    train(folder, tmp_path / "b", "--config.data.packed=False", status=2)
    assert asked == [("blocks",), ()]
