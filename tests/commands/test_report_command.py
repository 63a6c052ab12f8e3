"""`firth report` from its command to its page."""

import json

from helpers.workdirs import journal, make_workdir

from firth.cli import main
from firth.commands.report import best_run, others
from firth.display.runs import find_runs


def test_an_experiment_and_the_default_place(tmp_path, capsys):
    (tmp_path / "README.md").write_text("# What\n")
    assert main(["report", str(tmp_path)]) == 0
    assert "<h2>What</h2>" in (tmp_path / "report.html").read_text()
    assert capsys.readouterr().out == f"{tmp_path}/report.html\n"


def test_a_pretraining_run_has_no_results(tmp_path, capsys):
    make_workdir(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "x.html")]) == 0
    said = (tmp_path / "x.html").read_text()
    assert "<h2>Curves</h2>" in said and "Results" not in said and "Settings" in said
    assert "1 run" in capsys.readouterr().out and not (tmp_path / "run/report.html").exists()


def test_a_task_whose_model_cannot_be_read_is_reported_without_it(tmp_path, capsys):
    fields = {"data": {"task": "rte", "train": "", "dir": "/nowhere"}}
    make_workdir(tmp_path / "run", fields=fields)
    assert main(["report", str(tmp_path / "run")]) == 0
    said = (tmp_path / "run/report.html").read_text()
    assert "Results and errors" in said and "left out: " in said and "<h2>Curves</h2>" in said
    assert "firth report: results and errors are left out: " in capsys.readouterr().err
    (tmp_path / "run/report.html").unlink()
    # A split that is named must be shown.
    assert main(["report", str(tmp_path / "run"), "--split", "dev"]) == 2
    assert "model.json" in capsys.readouterr().err and not (tmp_path / "run/report.html").exists()
    assert main(["report", str(tmp_path / "run"), "--no-model"]) == 0
    assert "left out" not in (tmp_path / "run/report.html").read_text()


def test_the_page_of_a_named_task_has_what_papers_report(tmp_path):
    (tmp_path / "WNLI").mkdir()
    rows = [f"{i}\tIt fell.\tIt is {('whole', 'broken')[i % 2]}.\t{i % 2}" for i in range(8)]
    lines = ["index\tsentence1\tsentence2\tlabel", *rows]
    for split in ("train", "dev", "test"):
        own = [line.rpartition("\t")[0] for line in lines] if split == "test" else lines
        (tmp_path / "WNLI" / f"{split}.tsv").write_text("\n".join([*own, ""]))
    given = ["--config=logistic.py:task=wnli", f"--config.data.dir={tmp_path}"]
    assert main(["train", *given, f"--workdir={tmp_path}/run"]) == 0
    assert main(["report", f"{tmp_path}/run"]) == 0
    said = (tmp_path / "run/report.html").read_text()
    assert "What others report on dev:" in said and ">DistilBERT<" in said and ">0.563<" in said


def test_the_best_run_is_that_of_the_best_metric(tmp_path):
    for seed, losses in enumerate([(5.0, 4.0), (5.0, 3.0), (5.0, 3.5)]):
        make_workdir(tmp_path / str(seed), entries=journal(losses))
    assert best_run(find_runs([tmp_path])).path.name == "1"
    for name, accuracy in (("a", 0.5), ("b", 0.9), ("c", 0.7)):
        entries = [{"step": 1, "eval/dev/accuracy": accuracy}]
        make_workdir(tmp_path / "t" / name, entries=entries, best="dev/accuracy")
    assert best_run(find_runs([tmp_path / "t"])).path.name == "b"


def test_a_folder_of_seeds_says_whose_time_it_shows(tmp_path):
    for seed, losses in enumerate([(5.0, 4.0), (5.0, 3.0)]):
        make_workdir(tmp_path / f"seed-{seed}", entries=journal(losses), fields={"seed": seed})
    entry = {"mean": 3.5, "std": 0.5, "median": 3.5, "seeds": 2, "values": {"0": 4.0, "1": 3.0}}
    (tmp_path / "summary.json").write_text(json.dumps({"heldout/mlm_loss": entry}))
    assert main(["report", str(tmp_path)]) == 0
    said = (tmp_path / "report.html").read_text()
    assert f"of the best run, {tmp_path}/seed-1." in said and "<h2>Seeds</h2>" in said


OWN_FILES = ({"train": "my.csv"}, {"dev": "my.csv"}, {"task": ""}, {"task": "tfds:rte"})


def test_papers_stand_beside_a_task_whose_files_are_not_ones_own(tmp_path):
    known = {"task": "rte", "train": "", "dev": ""}
    theirs = ({}, {"task": "tfds:glue/rte"})
    for number, fields in enumerate((*theirs, *OWN_FILES)):
        run = make_workdir(tmp_path / str(number), fields={"data": known | fields})
        found = [one.model for one in others(find_runs([run])[0], "dev")]
        assert ("DistilBERT" in found) == (fields in theirs)
    assert not others(find_runs([tmp_path / "0"])[0], "test")
