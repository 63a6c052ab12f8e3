"""The journal: what a killed run left after its last checkpoint goes, all else stays."""

import json
import math
import subprocess
import sys
import time
from importlib import metadata

import pytest

from firth.errors import FirthError
from firth.progress import Progress
from firth.training.journal import Journal, describe_environment, read_journal


def lines(workdir):
    return (workdir / "metrics.jsonl").read_text().splitlines()


def write(workdir, start, steps, tensorboard=False):
    journal = Journal(workdir, start, tensorboard=tensorboard)
    for step in steps:
        journal.write(step, {"train/loss": step / 7})
    journal.close()


def test_lines_after_the_restored_step_are_dropped(tmp_path):
    write(tmp_path, 0, [10, 20, 30, 40])
    kept = lines(tmp_path)[:2]
    write(tmp_path, 20, [30])
    assert lines(tmp_path)[:2] == kept
    assert [entry["step"] for entry in read_journal(tmp_path)] == [10, 20, 30]
    write(tmp_path, 0, [])
    assert lines(tmp_path) == []


@pytest.mark.parametrize("cut", ["{", '{"step": 30, "train/lo', '{"step": 30, "train/loss": 4'])
def test_a_line_cut_by_a_kill_is_dropped(tmp_path, cut):
    write(tmp_path, 0, [10, 20])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(cut)
    assert [entry["step"] for entry in read_journal(tmp_path)] == [10, 20]
    write(tmp_path, 25, [30])
    assert [entry["step"] for entry in read_journal(tmp_path)] == [10, 20, 30]
    assert all(json.loads(line) for line in lines(tmp_path))


def test_values_survive_to_the_last_bit(tmp_path):
    value = math.pi * 1e-7
    journal = Journal(tmp_path, 0, tensorboard=False)
    journal.write(1, {"a": value, "b": math.inf, "c": math.nan})
    assert read_journal(tmp_path) == [{"step": 1, "a": value, "b": None, "c": None}]  # at once
    journal.close()


def test_tensorboard_gets_the_scalars_of_the_steps_that_count(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)  # not needed, and seconds to import
    from tensorboard.backend.event_processing import event_accumulator

    write(tmp_path, 0, [1, 2, 3], tensorboard=True)
    time.sleep(1.1)  # its files are named by the second
    journal = Journal(tmp_path, 2)
    journal.write(3, {"train/loss": 0.5, "train/loss_at_nonfinite": "nan"})
    journal.close()
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [1, 2, 3]
    assert events.Scalars("train/loss")[-1].value == 0.5
    assert read_journal(tmp_path)[-1]["train/loss_at_nonfinite"] == "nan"


def test_tensorboard_files_do_not_cost_an_import_of_pytorch(tmp_path):
    """Which takes seconds of every run; whoever wants it later still finds it."""
    code = (
        "import importlib.util, sys; from firth.training.journal import Journal\n"
        "Journal(sys.argv[1], 0).close()\n"
        "assert 'torch' not in sys.modules and importlib.util.find_spec('torch')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_tensorboard_gets_the_config_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    from tensorboard.backend.event_processing import event_accumulator, event_file_loader
    from tensorboard.plugins.hparams import metadata as hparams

    fields = {"schedule.lr": 1e-3, "steps": 9, "progress": True, "data.store": "s", "x": (1, 2)}
    for start in (0, 0, 5):  # killed before its first checkpoint, and after it
        journal = Journal(tmp_path, start)
        journal.describe(fields, ["train/loss"])
        journal.write(start + 1, {"train/loss": 0.5})
        journal.close()
        time.sleep(1.1)
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    (text,) = events.Tensors("config/text_summary")
    (table,) = text.tensor_proto.string_val
    assert "| schedule.lr | 0.001 |" in table.decode() and "| data.store | 's' |" in table.decode()
    sessions = [
        hparams.parse_session_start_info_plugin_data(value.metadata.plugin_data.content)
        for file in sorted(tmp_path.glob("events*"))
        for event in event_file_loader.LegacyEventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == hparams.SESSION_START_INFO_TAG
    ]
    (session,) = sessions
    found = {name: session.hparams[name] for name in fields}
    assert found["schedule.lr"].number_value == 1e-3 and found["progress"].bool_value is True
    assert (found["data.store"].string_value, found["x"].string_value) == ("s", "(1, 2)")


def test_no_journal_is_said_so(tmp_path):
    with pytest.raises(FirthError, match=r"metrics\.jsonl"):
        read_journal(tmp_path)


def test_progress_speaks_now_and_then_without_a_terminal(capsys):
    bar = Progress(100, 0, "run", every=0)
    bar.update(1)
    bar.update(2, "loss 1.0")
    bar.say("saved")
    bar.close()
    assert capsys.readouterr().err.splitlines() == ["run 2/100 loss 1.0", "saved"]
    Progress(100, 0, "run", every=1e6).update(2, "loss 1.0")  # it has not been long
    Progress(100, 0, "run", quiet=True).say("nothing")
    assert capsys.readouterr().err == ""


def test_the_environment_names_versions_and_devices():
    text = describe_environment()
    assert f"jax: {metadata.version('jax')}" in text and "devices: 8 x" in text
    assert "git commit: " in text and text.endswith("\n")
