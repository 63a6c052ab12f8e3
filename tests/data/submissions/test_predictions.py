"""Files of predictions as GLUE takes them: strings of the task, and never half a file."""

import numpy as np
import pytest

from firth.data.submissions.predictions import write_predictions
from firth.data.tasks.task import GLUE
from firth.errors import FirthError


def test_submissions_carry_the_label_strings_of_the_task(tmp_path):
    path = tmp_path / "out.tsv"
    write_predictions(path, GLUE["rte"], np.array([1, 0]))
    assert path.read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    write_predictions(path, GLUE["mnli"], [2, 0, 1])
    assert path.read_text().split() == (
        ["index", "prediction", "0", "contradiction", "1", "entailment", "2", "neutral"]
    )
    write_predictions(path, GLUE["sst2"], [1])  # 0 and 1, not the names that they stand for
    assert path.read_text() == "index\tprediction\n0\t1\n"


def test_stsb_scores_are_clipped(tmp_path):
    write_predictions(tmp_path / "s.tsv", GLUE["stsb"], np.float32([-0.3, 2.34567, 5.2]))
    assert (tmp_path / "s.tsv").read_text().split() == (
        ["index", "prediction", "0", "0.0000", "1", "2.3457", "2", "5.0000"]
    )


@pytest.mark.parametrize(
    ("task", "bad", "said"),
    [
        ("rte", [0, 2], "prediction 2 of example 1"),
        ("rte", [0, 1, -1], "prediction -1 of example 2"),
        ("stsb", [0.1, np.nan], "not finite"),
    ],
)
def test_a_bad_prediction_leaves_the_old_file_alone(tmp_path, task, bad, said):
    path = tmp_path / "old.tsv"
    path.write_text("old")
    with pytest.raises(FirthError, match=said):
        write_predictions(path, GLUE[task], bad)
    assert [p.name for p in tmp_path.iterdir()] == ["old.tsv"] and path.read_text() == "old"


def test_a_failing_write_leaves_nothing_half_written(tmp_path, monkeypatch):
    path = tmp_path / "old.tsv"
    path.write_text("old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="No space"):
        write_predictions(path, GLUE["rte"], [0])
    assert [p.name for p in tmp_path.iterdir()] == ["old.tsv"] and path.read_text() == "old"
