"""Whole runs of several tasks: measured, predicted, gone on after a kill, and what is refused."""

import csv
import itertools
import json
import signal
import time

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers.labelled import WORDS
from helpers.published.bert import add_tokenizer, make_bert
from helpers.runs import assert_same_bytes, logged, start, trained
from sklearn.metrics import accuracy_score

import firth
from firth import recipe
from firth.cli import main
from firth.data.multitask.tasks import find_tasks, load_tasks
from firth.errors import FirthError
from firth.run.labelled.several import Multitask
from firth.weights.names import check_params
from firth.weights.read import read_model
from firth.weights.transfer.task import of_task


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny BERT in `init`; files of classes of texts, scores of pairs, and several labels."""
    folder = tmp_path_factory.mktemp("several")
    make_bert(folder / "init", "BertForPreTraining", vocab_size=72, num_hidden_layers=1)
    add_tokenizer(folder / "init")
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(2, 7))) for _ in range(150)]
    animals = [("many", "dog", "cat")[("dog" not in t) + ("cat" not in t)] for t in texts]
    write(folder / "animal.csv", ("text", "label"), zip(texts[:72], animals[:72], strict=True))
    write(folder / "new.csv", ("text", "label"), zip(texts[72:84], animals[72:84], strict=True))
    pairs = [(a, b, len(a) / 10 + 0.5) for a, b in itertools.pairwise(texts[:37])]
    write(folder / "like.csv", ("sentence1", "sentence2", "score"), pairs)
    rows = [{"text": t, "labels": [w for w in ("cat", "fish") if w in t]} for t in texts[:36]]
    (folder / "names.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def command(folder, workdir, *more):
    return [
        *(f"--config=finetune.py:init={folder}/init,length=24", f"--workdir={workdir}"),
        f"--config.data.dir={folder}",
        "--config.data.tasks=animal=animal.csv,like=like.csv,names=names.jsonl",
        *("--config.batch_size=16", "--config.eval.batch_size=8", "--config.data.loader=thread"),
        *("--config.schedule.lr=1e-3", "--config.log_every=1", "--config.curves=False"),
        *more,
    ]


@pytest.fixture(scope="module")
def ended(folder, tmp_path_factory):
    """(workdir, what was said) of a run."""
    workdir = tmp_path_factory.mktemp("ended")
    return workdir, trained(command(folder, workdir))


def error_of(capsys, argv):
    assert main([str(one) for one in argv]) == 2
    return capsys.readouterr().err


def test_each_task_is_measured_and_the_mean_chooses(ended):
    workdir, said = ended
    assert json.loads((workdir / "model.json").read_text())["best"] == "dev/mean"
    last = [entry for entry in logged(workdir) if "eval/dev/mean" in entry][-1]
    own = {
        "dev_animal": {"accuracy"},
        "dev_like": {"pearson", "spearman"},
        "dev_names": {"f1_micro", "f1_macro", "exact_match"},
    }
    for name, metrics in own.items():
        found = {x.split("/")[2] for x in last if x.startswith(f"eval/{name}/")}
        assert found == metrics | {"task_loss"}, name
    main_metrics = ("dev_animal/accuracy", "dev_like/pearson", "dev_names/f1_micro")
    mean = sum(last[f"eval/{name}"] for name in main_metrics) / 3
    assert last["eval/dev/mean"] == pytest.approx(mean)
    (head,) = (n for n, line in enumerate(said.splitlines()) if line.startswith("set "))
    table = said.splitlines()[head : head + 4]
    assert table[0].split() == ["set", "measure", "best", "checkpoint", "constant", "answer"]
    assert [line.split()[:2] for line in table[1:]] == [x.split("/") for x in main_metrics]
    rows = (workdir / "predictions").exists()
    assert not rows  # no test set
    assert "animal: classification of 'text' by 'label'" in said
    assert "like: regression of 'sentence1' and 'sentence2' by 'score'" in said


def test_own_files_may_have_dev_and_test_files(folder):
    """The dev file is the dev split, and train stays whole; another task's is split off as ever."""
    data = recipe.read_recipe("finetune.py").data
    data.update(dir=str(folder), tasks="animal=animal.csv,like=like.csv", dev_fraction=0.25)
    data.update(dev="animal=new.csv", test="like=like.csv, animal=new.csv")
    splits = load_tasks(find_tasks(data), data.dir, data.dev_fraction)
    sizes = {
        name: {split: len(e.labels) for split, e in own.items()} for name, own in splits.items()
    }
    assert sizes == {
        "animal": {"train": 72, "dev": 12, "test": 12},
        "like": {"train": 27, "dev": 9, "test": 36},
    }
    data.update(dev="", test="")
    splits = load_tasks(find_tasks(data), data.dir, data.dev_fraction)
    assert {split: len(e.labels) for split, e in splits["animal"].items()} == {
        "train": 54,
        "dev": 18,
    }


def test_tasks_share_their_lengths_and_have_a_head_each(ended):
    workdir, _ = ended
    config = recipe.read(workdir)
    parts = Multitask.read(config, read_model(config.init_from))
    views = parts.rows(read_model(workdir).spec, config.data, 0)
    lengths = {tuple(view.lengths) for name, view in views.items() if name != "train"}
    lengths |= {tuple(part.lengths) for part in views["train"].parts}
    assert len(lengths) == 1 and len(*lengths) > 1
    params = read_model(workdir).params
    heads = {name: head["dense"]["kernel"].shape[1] for name, head in params["tasks"].items()}
    assert heads == {"animal": 3, "like": 1, "names": 2}
    assert params.keys() == {"encoder", "tasks"}


def test_predict_picks_the_head_of_a_task(folder, ended, tmp_path, capsys):
    workdir, _ = ended
    argv = ["predict", "--model", str(workdir), "--input", str(folder / "new.csv")]
    out = tmp_path / "animal.jsonl"
    assert main([*argv, "--output", str(out), "--task=animal"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert set(rows[0]["probabilities"]) == {"many", "dog", "cat"}
    out = tmp_path / "names.csv"
    assert main([*argv, "--output", str(out), "--task=names", "--threshold=0.1"]) == 0
    assert out.read_text().startswith("text,label,labels,p_cat,p_fish\n")
    said = error_of(capsys, [*argv, "--output", tmp_path / "x.csv"])
    assert "has a head for each of several tasks, animal, like, names; choose one: --task" in said
    said = error_of(capsys, [*argv, "--output", tmp_path / "x.csv", "--task=rte"])
    assert "has no task 'rte'; there are animal, like, names" in said
    argv = ["evaluate", "--model", str(workdir), "--data", str(folder / "new.csv")]
    assert main([*argv, "--task=animal", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    labels = [row["label"] for row in rows]
    said = [row["predicted_label"] for row in rows]
    assert found["metrics"]["accuracy"] == pytest.approx(accuracy_score(labels, said))
    score = firth.load(workdir, task="like").predict([("the cat", "the dog")])[0].score
    assert np.isfinite(score)
    with pytest.raises(FirthError, match="it is of one task"):
        firth.load(folder / "init", task="animal")


def test_the_workdir_is_measured_again_to_the_same_figures(ended, capsys):
    workdir, _ = ended
    assert main(["evaluate", f"--workdir={workdir}", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    best = [x for x in logged(workdir) if x["step"] == again["step"] and "eval/dev/mean" in x][-1]
    names = [name for name in best if name.startswith("eval/")]
    assert {n: again[n.removeprefix("eval/")] for n in names} == pytest.approx(
        {n: best[n] for n in names}
    )
    assert (workdir / "predictions" / "dev_names.tsv").is_file()
    assert main(["report", str(workdir)]) == 0


def test_the_published_layout_holds_one_task(ended, tmp_path, capsys):
    workdir, _ = ended
    argv = ["convert", "--from", workdir, "--to", tmp_path / "published"]
    said = error_of(capsys, argv)
    assert "heads of several tasks, animal, like, names; choose one: --task NAME" in said
    assert main([*map(str, argv), "--task=animal"]) == 0
    one, other = (
        firth.load(source, **more).predict("the cat ate")[0].probabilities
        for source, more in ((tmp_path / "published", {}), (workdir, {"task": "animal"}))
    )
    assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("data.tasks=animal=animal.csv",), "expected two tasks or more, each once"),
        (("data.tasks=rte,rte",), "expected two tasks or more, each once"),
        (("data.tasks=a=animal.csv,b c=like.csv",), "'b c' is no name of a task"),
        (("data.tasks=a=animal.csv,swag",), "task 'swag' has questions with choices"),
        (("data.tasks=a=animal.csv,nli",), "no task 'nli'; did you mean 'wnli'"),
        (("data.tasks=apply=animal.csv,b=like.csv",), "a head cannot be called 'apply'"),
        (("data.train=animal.csv",), "a run has one task or several"),
        (("data.dev=new.csv",), "data.dev='new.csv': 'new.csv' names no task"),
        (("data.test=animal=",), "'animal' names no task; of several tasks expected NAME=FILE"),
        (("data.dev=animal=a.csv,animal=b.csv",), "animal=b.csv': expected one file of a task"),
        (("data.dev=animals=new.csv",), "'animals' is none of the tasks with a file of their own"),
        (("unfreeze_epochs=1.0",), "unfreeze_epochs=1: a run of several tasks trains all"),
        (("data.packed=True",), "the texts of several tasks have rows of their own"),
        (("objective.class_weights=balanced",), "does not weigh labels"),
        (("objective.both_orders=True",), "needs two texts; task 'animal' has one"),
        (("data.task_power=-1.0",), "data.task_power=-1.0: expected a number of at least 0"),
    ],
)
def test_what_does_not_go_together_is_refused(folder, tmp_path, capsys, changes, said):
    more = [f"--config.{change}" for change in changes]
    assert said in error_of(capsys, ["train", *command(folder, tmp_path / "w", *more)])


def test_a_head_of_another_number_of_labels_is_an_error(ended):
    saved = read_model(ended[0])
    saved.tasks["animal"] = (("cat", "dog"), "classification")
    with pytest.raises(FirthError, match="does not fit its description"):
        check_params(flatten_dict(saved.params, sep="/"), saved, "there")
    assert of_task(saved, None) is saved


def test_predictions_are_in_the_order_of_the_file(ended):
    """Those that `evaluate` writes, beside those of the head alone on the dev split's texts."""
    workdir, _ = ended
    assert main(["evaluate", f"--workdir={workdir}", "--json"]) == 0
    config = recipe.read(workdir)
    parts = Multitask.read(config, read_model(config.init_from))
    for task in ("animal", "like", "names"):
        dev = parts.splits[task]["dev"]
        pairs = zip(dev.texts_a, dev.texts_b or dev.texts_a, strict=True)
        texts = [*pairs] if dev.texts_b else dev.texts_a
        said = firth.load(workdir, task=task).predict(texts)
        lines = (workdir / "predictions" / f"dev_{task}.tsv").read_text().splitlines()[1:]
        found = [line.split("\t")[1] for line in lines]
        if task == "like":
            scores = [one.score for one in said]
            np.testing.assert_allclose([float(x) for x in found], scores, atol=2e-4)
        else:
            answers = [one.label or "|".join(sorted(one.labels or ())) for one in said]
            assert found == answers


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bytes(folder, tmp_path):
    for name in ("straight", "killed", "killed"):
        first = not (tmp_path / name).exists()
        struck = name == "killed" and first
        process = start(command(folder, tmp_path / name, "--config.checkpoint.every=5"))
        deadline = time.monotonic() + 300
        while struck and not (tmp_path / name / "checkpoints/10").is_dir():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.005)
        if struck:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == (-signal.SIGKILL if struck else 0)
    saves = (tmp_path / "straight" / "checkpoints").glob("[0-9]*")
    last = max(int(path.name) for path in saves)
    assert last > 10
    assert_same_bytes(tmp_path / "straight", tmp_path / "killed", last)
