"""Which classifier of the weights that a run starts from stays: that of the task's own labels."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from helpers.runs import final_state

from firth.cli import main
from firth.data.tasks.task import GLUE, make_task
from firth.run.labelled.heads import without_other_labels
from firth.weights.read import Saved, read_model

INFERENCE = ("entailment", "neutral", "contradiction")


def saved(labels, count, regression=False):
    params = {"encoder": {}, "classifier": {"dense": {}}}
    return Saved(
        {}, ("classifier",), count, labels, regression, params, Path("runs/before"), "firth"
    )


@pytest.mark.parametrize(
    ("task", "labels", "count", "regression"),
    [
        ("mnli", INFERENCE, 3, False),
        ("mnli", None, 3, False),  # a published model that does not name them
        ("sst2", ("0", "1"), 2, False),
        ("sst2", ("negative", "positive"), 2, False),  # what 0 and 1 stand for
        ("stsb", None, 1, True),
    ],
)
def test_a_classifier_of_the_same_labels_stays(task, labels, count, regression):
    model = saved(labels, count, regression)
    assert without_other_labels(model, GLUE[task]) == (model, ())


@pytest.mark.parametrize(
    ("task", "labels", "count", "regression", "said"),
    [
        (
            *("rte", INFERENCE, 3, False),
            "is for the labels 'entailment', 'neutral', 'contradiction', and task 'rte' has the "
            "labels 'entailment', 'not_entailment'",
        ),
        ("rte", None, 3, False, "labels without names, and task 'rte' has the labels 'entail"),
        ("mnli", INFERENCE[::-1], 3, False, "'contradiction', 'neutral', 'entailment', and task"),
        ("mrpc", ("entailment", "not_entailment"), 2, False, "task 'mrpc' has the labels '0', '1'"),
        ("stsb", INFERENCE, 3, False, "and task 'stsb' has scores"),
        ("stsb", ("only",), 1, False, "is for the labels 'only', and task 'stsb' has scores"),
        ("rte", None, 1, True, "that one is for scores, and task 'rte' has the labels"),
    ],
)
def test_a_classifier_of_other_labels_is_left(task, labels, count, regression, said):
    model = saved(labels, count, regression)
    left, (line,) = without_other_labels(model, GLUE[task])
    assert left == dataclasses.replace(model, params={"encoder": {}})
    assert "classifier" in model.params and said in line
    assert line.startswith("runs/before: the encoder is taken, its classifier is not")


def test_weights_without_a_classifier():
    assert without_other_labels(None, GLUE["rte"]) == (None, ())
    model = dataclasses.replace(saved(INFERENCE, 3), params={"encoder": {}})
    assert without_other_labels(model, GLUE["rte"]) == (model, ())


def train(init, file, workdir, seed=0):
    """One step at a rate of zero; the parameters are those that the run started from."""
    argv = [
        f"--config=finetune.py:length=16,init={init}",
        *(f"--workdir={workdir}", f"--config.data.train={file}", f"--config.data.dev={file}"),
        *("--config.schedule.lr=0.0", "--config.steps=1", "--config.batch_size=8"),
        *(f"--config.seed={seed}", "--config.data.loader=thread"),
    ]
    assert main(["train", *argv]) == 0
    return {name: value for name, value in final_state(workdir, 1).items() if "params" in name}


def test_a_run_starts_from_one_on_another_task(tmp_path, capsys):
    """From three labels to two, as from MNLI to RTE; two others of the same number; the same."""
    make_bert(tmp_path / "init", "BertForPreTraining", vocab_size=72, num_hidden_layers=1)
    add_tokenizer(tmp_path / "init")
    for name, labels in (("three", "abc"), ("two", "ab"), ("others", "no")):
        rows = "".join(f"the cat sat {i}\t{labels[i % len(labels)]}\n" for i in range(9))
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + rows)
    before = train(tmp_path / "init", tmp_path / "three.tsv", tmp_path / "runs/three")
    capsys.readouterr()
    cases = (("three", "two", False), ("two", "others", False), ("two", "two", True))
    for seed, (init, name, kept) in enumerate(cases):  # a seed has its own random values
        workdir = tmp_path / f"runs/{name}" if init != name else tmp_path / "runs/again"
        first = read_model(tmp_path / "runs" / init).params["classifier"]["dense"]["kernel"]
        after = train(tmp_path / "runs" / init, tmp_path / f"{name}.tsv", workdir, seed)
        said = capsys.readouterr().err
        assert ("its classifier is not" in said) == (not kept), said
        kernel = after["['params']['classifier']['dense']['kernel']"]
        assert (first.shape == kernel.shape and np.array_equal(first, kernel)) == kept
        for path, value in after.items():
            if path.startswith("['params']['encoder']"):
                np.testing.assert_array_equal(value, before[path])


def test_a_classifier_of_one_label_is_none_of_several():
    task = make_task("t", "multilabel", "text", "labels", ("a", "b"), (), {"train": "t.csv"})
    left, (line,) = without_other_labels(saved(("a", "b"), 2), task)
    assert "classifier" not in left.params
    assert line.endswith(
        "is for the labels 'a', 'b', and task 't' has the labels 'a', 'b', "
        "several of which a text may have"
    )
    own = dataclasses.replace(saved(("a", "b"), 2), multilabel=True)
    assert without_other_labels(own, task) == (own, ())
