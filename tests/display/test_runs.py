"""Runs are told by their files: how far each is, how it ended, and what its numbers are."""

import fcntl
import json
import re
import subprocess
import sys
import threading
import time

import pytest
from helpers.workdirs import TASK, journal, make_workdir

from firth.cli import main
from firth.display.runs import KILLED, find_runs, read_journal, read_run
from firth.errors import FirthError
from firth.storage.local import file_lock


@pytest.mark.parametrize(
    ("ended", "state", "reason"),
    [
        ("finished", "finished", ""),
        ("stopped", "stopped", ""),
        ("failed: step 7: the loss is not finite", "failed", "step 7: the loss is not finite"),
        ("", "failed", KILLED),
        (None, "stopped", ""),  # by a Firth that did not say how
    ],
)
def test_how_a_run_ended(tmp_path, ended, state, reason):
    run = read_run(make_workdir(tmp_path / "run", ended=ended))
    assert (run.state, run.reason) == (state, reason)


def test_a_run_is_running_while_its_lock_is_held(tmp_path):
    folder = make_workdir(tmp_path / "run", ended="")
    with file_lock(folder / ".lock", "busy"):
        assert read_run(folder).state == "running"
        with pytest.raises(FirthError, match="busy"), file_lock(folder / ".lock", "busy"):
            pass
    assert read_run(folder).state == "failed"


def test_looking_does_not_keep_a_run_from_starting(tmp_path):
    folder = make_workdir(tmp_path / "run")
    reader = (folder / ".lock").open()
    fcntl.flock(reader, fcntl.LOCK_SH)
    threading.Timer(0.01, reader.close).start()
    with file_lock(folder / ".lock", "busy"):
        pass


def test_older_workdirs_have_no_account(tmp_path):
    for name, losses, state in (("whole", (5, 4, 3, 3), "finished"), ("part", (5, 4), "stopped")):
        folder = make_workdir(tmp_path / name, entries=journal(losses), steps=None)
        for file in ("goodput.json", "model.json", "env.txt", ".lock"):
            (folder / file).unlink()
        run = read_run(folder)
        assert (run.state, run.recipe, run.steps) == (state, "bert mlm", 40)


def test_the_numbers_of_pretraining(tmp_path):
    run = read_run(make_workdir(tmp_path / "run"))
    assert (run.step, run.steps, run.metric) == (40, 40, "heldout/mlm_loss")
    assert (run.last, run.best) == (4.0, 3.5)
    assert (run.speed, run.unit) == (1280.0, "tokens/s")
    until = read_run(make_workdir(tmp_path / "until", fields={"until": 20}))
    assert until.steps == 20


def test_the_numbers_of_a_task(tmp_path):
    values = (0.5, None, 0.9, 0.8)  # None: it was not finite
    entries = [
        {"step": 5 * i, "eval/dev/loss": 1.0, "eval/dev/f1": value, "eval/dev/accuracy": 0.1}
        for i, value in enumerate(values, 1)
    ]
    entries += [{"step": 20, "perf/step_ms": 200.0, "perf/tokens_per_sec": 9.0}]
    run = read_run(
        make_workdir(tmp_path / "run", fields=TASK, entries=entries, best="dev/f1", steps=33)
    )
    assert (run.metric, run.last, run.best, run.steps) == ("dev/f1", 0.8, 0.9, 33)
    assert (run.speed, run.unit) == (40.0, "examples/s")  # 8 rows in 200 ms
    lowest = {"checkpoint": {"best_mode": "min"}}
    folder = make_workdir(tmp_path / "low", fields=TASK | lowest, entries=entries, best="dev/f1")
    assert read_run(folder).best == 0.5


@pytest.mark.parametrize(
    ("command", "recipe", "changed"),
    [
        (
            "/x/firth train --config=bert.py:mini,length=64 --workdir=w",
            "bert.py:mini,length=64",
            (),
        ),
        ("-c train --workdir w --config my/own.py", "my/own.py", ()),
        (
            "firth train --config bert.py --config.schedule.lr=1 --config.steps 5",
            "bert.py",
            ("schedule.lr", "steps"),
        ),
        ("pytest tests/display", "bert mlm", ()),
        ("firth train --config='it is open", "'it", ()),
    ],
)
def test_the_recipe_is_that_of_the_command(tmp_path, command, recipe, changed):
    run = read_run(make_workdir(tmp_path / "run", command=command))
    assert (run.recipe, run.changed) == (recipe, frozenset(changed))


def test_what_is_a_run_and_what_is_none(tmp_path):
    make_workdir(tmp_path / "b" / "deep" / "run")
    begun = make_workdir(tmp_path / "a")
    (begun / "metrics.jsonl").unlink()  # it has not logged yet
    make_workdir(tmp_path / "a" / "checkpoints" / "inside")  # nobody looks into a workdir
    make_workdir(tmp_path / ".hidden")
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text('{"model_type": "bert"}')
    elsewhere = make_workdir(tmp_path.with_name(f"{tmp_path.name}-disk") / "run")
    (tmp_path / "linked").symlink_to(elsewhere)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    found = [str(run.path.relative_to(tmp_path)) for run in find_runs([tmp_path])]
    assert found == ["a", "b/deep/run", "linked"]
    assert [run.path for run in find_runs([begun, tmp_path / "a"])] == [begun]


def test_a_folder_of_seeds_is_a_run_with_a_mean(tmp_path):
    folder = tmp_path / "rte"
    for seed, value in enumerate((0.6, 0.8)):
        entries = [{"step": 9, "eval/dev/accuracy": value}]
        fields = TASK | {"seed": seed}
        make_workdir(folder / f"seed-{seed}", fields=fields, entries=entries, best="dev/accuracy")
    assert len(find_runs([folder])) == 2, "its summary is written at the end"
    summary = {"dev/accuracy": {"mean": 0.7, "std": 0.1414, "values": {"0": 0.6, "1": 0.8}}}
    (folder / "summary.json").write_text(json.dumps(summary))
    whole, *seeds = find_runs([tmp_path])
    assert (whole.best, whole.spread, whole.seeds, whole.state) == (0.7, 0.1414, 2, "finished")
    assert [run.best for run in seeds] == [0.6, 0.8] and "seed" not in whole.fields
    (folder / "summary.json").write_text("{")
    whole, *seeds = find_runs([tmp_path])
    assert whole.state == "damaged" and "summary.json:1" in whole.reason and len(seeds) == 2


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", b'{"steps":\n', r"config\.json:2: not valid JSON"),
        ("config.json", b"[1]", r"config\.json: expected a JSON object"),
        ("config.json", b"\xff\xfe", r"config\.json: not UTF-8"),
        ("config.json", None, r"cannot read .*config\.json"),
        ("metrics.jsonl", b"\x00\x01\n[2]\n7\n", "no line is an entry"),
    ],
)
def test_damage_is_named_and_stops_no_other(tmp_path, capsys, file, content, reason):
    damaged, _ = make_workdir(tmp_path / "a"), make_workdir(tmp_path / "b")
    (damaged / file).unlink() if content is None else (damaged / file).write_bytes(content)
    one, other = find_runs([tmp_path])
    assert one.state == "damaged" and other.state == "finished"
    assert main(["runs", str(tmp_path)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("damaged: ") and re.search(reason, last)


@pytest.mark.parametrize("file", ["goodput.json", "model.json", "env.txt"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_what_is_not_needed_may_be_damaged(tmp_path, file, content):
    folder = make_workdir(tmp_path / "run")
    (folder / file).write_bytes(content)
    assert read_run(folder).best == 3.5


def test_lines_that_a_kill_cut_short_do_not_count(tmp_path):
    folder = make_workdir(tmp_path / "run", ended="")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "eval/heldout/mlm_loss": 0.1')
    run = read_run(folder)
    assert (run.step, run.best, len(read_journal(folder))) == (40, 3.5, 8)


def test_what_cannot_be_looked_at_is_refused(tmp_path):
    with pytest.raises(FirthError, match="nowhere: no such folder"):
        find_runs(["nowhere"])
    with pytest.raises(FirthError, match="gs://bucket/runs is a URL"):
        find_runs(["gs://bucket/runs"])
    with pytest.raises(FirthError, match="logged nothing"):
        read_journal(tmp_path)


def test_fifty_runs_take_no_second_and_no_jax(tmp_path):
    many = journal(losses=[4.0] * 200)
    for number in range(50):
        make_workdir(tmp_path / f"run-{number}", entries=many)
    began = time.process_time()
    assert len(find_runs([tmp_path])) == 50
    assert time.process_time() - began < 1
    program = (
        "import sys; from firth.cli import main; main(sys.argv[1:]); print('jax' in sys.modules)"
    )
    argv = [sys.executable, "-c", program, "runs", tmp_path]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False" and len(done.stdout.splitlines()) == 52
