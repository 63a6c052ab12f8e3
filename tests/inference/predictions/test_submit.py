"""From runs on GLUE's tasks to the archive: whose answers, in which order, and what is refused."""

import contextlib
import io
import json
import re
import shutil
import zipfile

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from helpers.runs import trained

from firth.cli import main
from firth.data.submissions.glue import FILES, check
from firth.data.tasks.load import load_split
from firth.data.tasks.task import GLUE
from firth.inference.predictions.load import load_classifier
from firth.inference.predictions.reading import Reading
from firth.inference.predictions.submit import Source, find_sources, submit

CLASSES = ("entailment", "neutral", "contradiction")
CLAIM = {"entailment": "yes indeed", "neutral": "perhaps so", "contradiction": "no never"}
MNLI = [f"column{i}" for i in range(8)] + ["sentence1", "sentence2"]


def claims(count):
    """Labels of so many examples, in an order without a pattern."""
    return [CLASSES[i] for i in np.random.default_rng(count).integers(0, 3, count)]


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


def train(*argv):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main(["train", *map(str, argv), "--config.l2=(10.0,)"]) == 0, said.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Logistic regressions of WNLI and MNLI, whose second text says the label; test sets whole."""
    folder = tmp_path_factory.mktemp("runs")
    glue, pad = folder / "glue", [""] * 8
    few = [[*pad, "a", CLAIM[label], label] for label in CLASSES for _ in range(4)]
    for split in ("train", "dev_matched", "dev_mismatched"):
        write(glue / f"MNLI/{split}.tsv", [*MNLI, "gold_label"], *few)
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv"):
        entry = FILES[name]
        rows = [[*pad, "a", CLAIM[label]] for label in claims(entry.rows)]
        write(glue / entry.answers.files[entry.split], MNLI, *rows)
    pair = ["index", "sentence1", "sentence2"]
    rows = [[str(i), "a", CLAIM[label]] for i, label in enumerate(claims(1104))]
    write(glue / "diagnostic/diagnostic.tsv", pair, *rows)
    wnli = [["0", "a", CLAIM[label], str(i)] for i, label in enumerate(CLASSES[:2])] * 5
    for split in ("train", "dev"):
        write(glue / f"WNLI/{split}.tsv", [*pair, "label"], *wnli)
    rows = [[str(i), "a", CLAIM[label]] for i, label in enumerate(claims(146))]
    write(glue / "WNLI/test.tsv", pair, *rows)
    for task in ("mnli", "wnli"):
        config = f"--config=logistic.py:task={task},order=1,gap=0"
        train(config, f"--workdir={folder / task}", f"--config.data.dir={glue}")
    own = [["premise", "hypothesis", "label"], *([*row[-3:]] for row in few)]
    write(folder / "own.tsv", *own)
    split = f"--config.data.train={folder}/own.tsv", f"--config.data.dev={folder}/own.tsv"
    train("--config=logistic.py:order=1,gap=0", f"--workdir={folder / 'own'}", *split)
    return folder


def run(*argv):
    """(exit status, stdout, stderr) of `firth submit`."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["submit", *map(str, argv)])
    return status, out.getvalue(), err.getvalue()


def answers(path, name):
    with zipfile.ZipFile(path) as archive:
        return [row.split("\t")[1] for row in archive.read(name).decode().splitlines()[1:]]


@pytest.fixture(scope="module")
def filled(folder):
    """(archive, what was printed) of both runs, with constant answers for the other tasks."""
    path = folder / "submission.zip"
    status, out, err = run(folder / "mnli", folder / "wnli", "--fill", "--output", path)
    assert status == 0, err
    return path, out


def test_answers_are_in_the_order_of_the_test_sets(folder, filled):
    path, out = filled
    for name in ("MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"):
        assert answers(path, name) == claims(FILES[name].rows)
    told = answers(path, "WNLI.tsv")
    for label, answer in zip(claims(146), told, strict=True):
        assert label not in CLASSES[:2] or answer == str(CLASSES.index(label))
    assert set(answers(path, "RTE.tsv")) == {"entailment"}
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["AX.tsv"].endswith(str(folder / "mnli")) and "1,104" in lines["AX.tsv"]
    assert lines["WNLI.tsv"].endswith(str(folder / "wnli"))
    assert lines["QQP.tsv"].endswith("a constant") and "0 390,965, 1 0" in lines["QQP.tsv"]
    assert out.splitlines()[-1] == f"{path}: 11 files, 7 of them constant answers"


def test_a_check_prints_what_is_there(filled, tmp_path):
    status, out, _ = run("--check", filled[0])
    assert status == 0 and out.endswith("submission.zip has what GLUE's server takes\n")
    assert len(out.splitlines()) == 12 and "2.5000 to 2.5000" in out
    with zipfile.ZipFile(tmp_path / "less.zip", "w") as less:
        less.writestr("RTE.tsv", "index\tprediction\n0\tyes\n")
    status, _, err = run("--check", tmp_path / "less.zip")
    assert status == 2 and "RTE.tsv:2: 'yes' is not one of entailment, not_entailment" in err
    assert err.count("\n") == 1


def test_labels_go_by_name(folder, filled, tmp_path):
    """A model of one's own files has MNLI's labels in another order; a mean of two has, too."""
    labels = json.loads((folder / "own" / "model.json").read_text())["labels"]
    assert labels == ["contradiction", "entailment", "neutral"]
    path = tmp_path / "own.zip"
    sources = find_sources([f"mnli={folder / 'own'},{folder / 'mnli'}"], f"{folder / 'glue'}")
    submit(sources, path, fill=True)
    assert answers(path, "AX.tsv") == claims(1104)
    assert check(path)[-1].labels == dict(
        zip(CLASSES, map(claims(1104).count, CLASSES), strict=True)
    )


def test_scores_are_clipped(folder, monkeypatch, tmp_path):
    class Lengths:
        """A model of scores: half the length of the first text."""

        labels, length, max_length, encoder, source = (), 9, 9, None, "lengths"

        def __call__(self, texts, reading, names=None):
            return np.array([[len(a) / 2] for a, _ in texts]), 0

    words = [["a" * (i % 13), "b"] for i in range(1379)]
    rows = [[str(i), *pair] for i, pair in enumerate(words)]
    write(tmp_path / "STS-B/test.tsv", ["index", "sentence1", "sentence2"], *rows)
    monkeypatch.setattr(
        "firth.inference.predictions.submit.load_classifier", lambda *_, **__: Lengths()
    )
    submit({"stsb": Source("lengths", str(tmp_path))}, tmp_path / "s.zip", fill=True)
    expected = [f"{min(i % 13 / 2, 5):.4f}" for i in range(1379)]
    assert answers(tmp_path / "s.zip", "STS-B.tsv") == expected


def test_the_best_seed_stands_for_its_folder(folder, tmp_path, caplog):
    for seed in range(2):
        shutil.copytree(folder / "wnli", tmp_path / f"seeds/seed-{seed}")
    summary = {"dev/accuracy": {"values": {"0": 0.5, "1": 0.75}}}
    (tmp_path / "seeds/summary.json").write_text(json.dumps(summary))
    found = find_sources([str(tmp_path / "seeds")])
    assert found == {"wnli": Source(str(tmp_path / "seeds/seed-1"), str(folder / "glue"))}
    shutil.copytree(folder / "wnli", tmp_path / "lr=0.1")  # not a task with its model
    found = find_sources([str(tmp_path / "lr=0.1")])
    assert found == {"wnli": Source(str(tmp_path / "lr=0.1"), str(folder / "glue"))}
    (tmp_path / "seeds/summary.json").write_text("{}")
    status, _, err = run(tmp_path / "seeds", "--fill", "--output", tmp_path / "s.zip")
    assert status == 2 and "has no 'dev/accuracy' of each seed" in err


def test_a_run_of_several_tasks_answers_for_those_of_glue(folder, tmp_path):
    """Each by its own head; `own` is no task of GLUE."""
    glue = folder / "glue"
    make_bert(tmp_path / "init", "BertForPreTraining", vocab_size=72, num_hidden_layers=1)
    add_tokenizer(tmp_path / "init")
    claim = [["0", "the dog", "a cat", label] for label in ("entailment", "not_entailment")] * 5
    for split in ("train", "dev"):
        write(glue / f"RTE/{split}.tsv", ["index", "sentence1", "sentence2", "label"], *claim)
    pairs = [[str(i), "the dog sat " * (i % 5), "a cat"] for i in range(3000)]
    write(glue / "RTE/test.tsv", ["index", "sentence1", "sentence2"], *pairs)
    recipe = f"finetune.py:init={tmp_path}/init,length=24"
    more = f"data.tasks=rte,own={folder}/own.tsv,wnli", f"data.dir={glue}", "data.loader=thread"
    more += f"data.dev=own={folder}/own.tsv", "batch_size=8", "eval.batch_size=8"
    more += "curves=False", "schedule.lr=1e-2"
    workdir = tmp_path / "several"
    trained([f"--config={recipe}", f"--workdir={workdir}", *(f"--config.{one}" for one in more)])

    status, out, err = run(workdir, folder / "mnli", "--fill", "--output", tmp_path / "s.zip")
    assert status == 0, err
    sources = dict(line.split()[:: len(line.split()) - 1] for line in out.splitlines()[:-1])
    mine = [name for name, source in sources.items() if source == str(workdir)]
    assert mine == ["RTE.tsv", "WNLI.tsv"] and sources["AX.tsv"] == str(folder / "mnli")
    for name, task in (("RTE.tsv", "rte"), ("WNLI.tsv", "wnli")):
        texts = load_split(GLUE[task], "test", glue)
        classifier = load_classifier(str(workdir), task=task)
        found, _ = classifier(
            list(zip(texts.texts_a, texts.texts_b, strict=True)), Reading(batch_size=4)
        )
        assert answers(tmp_path / "s.zip", name) == [GLUE[task].labels[i] for i in found.argmax(1)]
    assert find_sources([f"rte={workdir}"]) == {"rte": Source(str(workdir), str(glue), "rte")}
    for given, said in (
        ([workdir, folder / "wnli"], "wnli are both of task 'wnli'; give one"),
        ([f"qnli={workdir}", f"--data={glue}"], "QNLI.test.tsv: no such file"),
        ([f"mnli={workdir}", f"--data={glue}"], "has no task 'mnli'; there are rte, own, wnli"),
    ):
        status, _, err = run(*given, "--fill", "--output", tmp_path / "t.zip")
        assert status == 2 and re.search(said, err), err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["{0}/mnli", "{0}/wnli"], "these have no model: CoLA.tsv, SST-2.tsv, .*give runs of cola"),
        (["{0}/own", "--fill"], "own was trained on files of its own, not on a task of GLUE"),
        (["{0}/wnli", "wnli={0}/own", "--fill"], "own are both of task 'wnli'; give one"),
        (["rte2={0}/wnli", "--fill"], "'rte2' is no task of GLUE; there are cola, "),
        (["{0}/wnli,{0}/mnli", "--fill"], "for the mean of several models write TASK="),
        (["{0}/wnli", "--data={0}", "--fill"], "WNLI.test.tsv: no such file, nor .gz or .xz"),
        (["{0}/gone", "--fill"], "gone is not a workdir: it has no config.json"),
        (["rte={0}/own", "--fill"], "own does not say where GLUE's files are; give --data DIR"),
        (
            ["wnli={0}/own", "--data={0}/glue", "--fill"],
            "own has the labels contradiction, entailment, neutral, but task 'wnli' has 0, 1",
        ),
        (["{0}/wnli", "--data={0}/cut", "--fill"], "cut.WNLI.test.tsv has 1 examples, but .* 146"),
        (["{0}/wnli", "--output=s.txt"], "--output s.txt: expected a .zip file"),
        (["--output=s.zip"], "give models and --output FILE.zip, or --check FILE.zip"),
        ([], "give models and --output FILE.zip"),
        (["--check=s.zip", "--fill"], "--check goes alone"),
        (["{0}/wnli", "--fill", "--output={0}/there.zip"], "there.zip is there already; give --ov"),
    ],
)
def test_what_is_refused(folder, tmp_path, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    (folder / "there.zip").touch()
    pair = ["index", "sentence1", "sentence2"]
    write(folder / "cut/WNLI/test.tsv", pair, ["0", "a", "b"])
    argv = [item.format(folder) for item in argv]
    alone = not argv or any(item.startswith(("--output", "--check")) for item in argv)
    status, _, err = run(*argv, *([] if alone else ["--output=s.zip"]))
    assert status == 2 and err.count("\n") == 1
    assert re.search(said, err), err
    assert list(tmp_path.iterdir()) == []
