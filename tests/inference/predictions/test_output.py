"""An interrupted run goes on with the same command, to the same bytes."""

import csv
import io
import json
import logging
import os
import signal
import time

import pytest
from helpers.runs import start

from firth.data.tasks.rows import Rows
from firth.errors import FirthError
from firth.inference.predictions.classifier import Classifier
from firth.inference.predictions.layout import Layout
from firth.inference.predictions.output import identity, write_predictions
from firth.inference.predictions.reading import Reading
from firth.storage import partial as module
from firth.storage.partial import Partial

SIZE = 4  # rows of a batch; two batches a window


@pytest.fixture
def table(tmp_path, texts):
    """A CSV of 30 texts: three full windows, and six rows."""
    path = tmp_path / "in.csv"
    lines = [f'{i},"{text}, {i}"' for i, text in enumerate(texts)]
    path.write_text("\n".join(["id,text", *lines]) + "\n")
    return path


class Killed(BaseException):
    """What no code of Firth catches."""


def predict(labelled, table, output, *, stop=None, classifier=None, **options):
    """Predict all rows; `stop` windows are written, then what comes raises `Killed`."""
    classifier, rows = classifier or labelled.encoder.classifier, Rows(table)
    layout, reading = Layout("csv", rows, classifier.labels), Reading(batch_size=SIZE, **options)
    with Partial(output, identity(classifier, rows, layout, reading)) as sink:
        append, before = sink.append, sink.rows

        def count(*arguments):
            if stop == 0 or (stop and sink.rows - before >= stop * 2 * SIZE):
                raise Killed
            append(*arguments)

        sink.append = count
        write_predictions(classifier, rows, sink, layout, reading, batches=2)
        sink.finish()
    return before


@pytest.fixture
def whole(labelled, table, tmp_path):
    """The bytes of a run that nothing interrupts."""
    (tmp_path / "whole").mkdir()
    predict(labelled, table, tmp_path / "whole" / "out.csv")
    assert os.listdir(tmp_path / "whole") == ["out.csv"]
    data = (tmp_path / "whole" / "out.csv").read_bytes()
    head, *rows = csv.reader(io.StringIO(data.decode()))
    assert head[:3] == ["id", "text", "label"] and [row[0] for row in rows] == [
        *map(str, range(30))
    ]
    return data


def test_it_goes_on_to_the_same_bytes(labelled, table, whole, tmp_path, caplog):
    output, partial = tmp_path / "out.csv", tmp_path / "out.csv.partial"
    done = []
    for _ in range(3):
        with caplog.at_level(logging.WARNING), pytest.raises(Killed):
            done.append(predict(labelled, table, output, stop=1))
        assert not output.exists()
        with partial.open("ab") as file:  # as a kill within the next write leaves it
            file.write(b'99,"half a r')
    assert "out.csv.partial holds 24 rows; the same command goes on" in caplog.text
    assert predict(labelled, table, output) == 24
    assert output.read_bytes() == whole
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "out.csv", "whole"]


def test_before_the_first_window_nothing_is_left(labelled, table, whole, tmp_path):
    with pytest.raises(Killed):
        predict(labelled, table, tmp_path / "out.csv", stop=0)
    assert sorted(os.listdir(tmp_path)) == ["in.csv", "whole"]
    # A kill leaves what a next run with other options takes over.
    (tmp_path / "out.csv.partial").write_bytes(b"id,te")
    state = {"identity": {"batch_size": 99}, "rows": 0, "bytes": 0, "cut": 0, "digest": ""}
    (tmp_path / "out.csv.partial.json").write_text(json.dumps(state))
    predict(labelled, table, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == whole


def test_a_loss_of_power_costs_the_rows_and_nothing_else(labelled, table, whole, tmp_path):
    with pytest.raises(Killed):
        predict(labelled, table, tmp_path / "out.csv", stop=2)
    os.truncate(tmp_path / "out.csv.partial", 100)
    predict(labelled, table, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == whole


def test_what_is_another_run_is_not_taken_over(labelled, table, tmp_path):
    output, partial = tmp_path / "out.csv", tmp_path / "out.csv.partial"
    with pytest.raises(Killed):
        predict(labelled, table, output, stop=1)
    before = partial.read_bytes()
    with pytest.raises(FirthError, match=r"partial has max_length=None, not 20; give the same"):
        predict(labelled, table, output, max_length=20)
    other = Classifier(labelled.encoder)
    other.labels = ("bad", "good", "mediocre")
    with pytest.raises(FirthError, match=r"partial has model='\w{32}', not '\w{32}'"):
        predict(labelled, table, output, classifier=other)
    text = table.read_text()
    for changed in (text.replace('3,"', '3,"the ', 1), "\n".join(text.splitlines()[:7]) + "\n"):
        table.write_text(changed)
        with pytest.raises(FirthError, match="partial holds 8 rows of another input"):
            predict(labelled, table, output)
    assert partial.read_bytes() == before
    (tmp_path / "out.csv.partial.json").unlink()
    with pytest.raises(FirthError, match=r"out\.csv\.partial is another's; .* or remove that file"):
        predict(labelled, table, output)
    assert partial.read_bytes() == before


def test_later_rows_of_an_input_may_change(labelled, table, whole, tmp_path):
    text = table.read_text()
    table.write_text("\n".join(text.splitlines()[:12]) + "\n")
    with pytest.raises(Killed):
        predict(labelled, table, tmp_path / "out.csv", stop=1)
    table.write_text(text)
    assert predict(labelled, table, tmp_path / "out.csv") == 8
    assert (tmp_path / "out.csv").read_bytes() == whole


def test_an_earlier_output_is_kept_until_the_new_one_is_complete(labelled, table, whole, tmp_path):
    output = tmp_path / "out.csv"
    output.write_text("what was there before")
    with pytest.raises(Killed):
        predict(labelled, table, output, stop=1)
    assert output.read_text() == "what was there before"
    assert predict(labelled, table, output) == 8
    assert output.read_bytes() == whole


def test_two_at_once_are_one_too_many(labelled, table, tmp_path):
    said = {"model": "x"}
    second = Partial(tmp_path / "out.csv", said)
    with Partial(tmp_path / "out.csv", said), pytest.raises(FirthError, match="another process"):
        second.__enter__()


def test_a_full_disk_is_named_and_can_be_mended(labelled, table, whole, tmp_path, monkeypatch):
    def full(path, value):
        raise OSError(28, "No space left on device")

    with pytest.raises(Killed):
        predict(labelled, table, tmp_path / "out.csv", stop=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_json", full)
        with pytest.raises(FirthError, match=r"out\.csv cannot be written: No space left on"):
            predict(labelled, table, tmp_path / "out.csv")
    assert predict(labelled, table, tmp_path / "out.csv") == 8
    assert (tmp_path / "out.csv").read_bytes() == whole


@pytest.mark.slow
def test_sigkill_at_any_moment(labelled, tmp_path, texts):
    """Real processes, each killed a little later after its first rows, until one ends."""
    table, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    table.write_text("\n".join(texts * 400) + "\n")
    partial, kills = tmp_path / "out.jsonl.partial", 0

    def size():
        return partial.stat().st_size if partial.exists() else 0

    def command(name):
        arguments = f"--model {labelled.folder} --input {table} --output {tmp_path / name}"
        return start([*arguments.split(), "--batch-size=2"], program=("-m", "firth", "predict"))

    while not output.exists() and kills < 20:
        before, process = size(), command(output.name)
        while process.poll() is None and size() <= before:
            time.sleep(0.001)
        time.sleep(0.15 * kills)
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL), process.communicate()
        kills += process.returncode != 0
    assert kills > 2
    assert command("whole.jsonl").wait() == 0
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert len(output.read_text().splitlines()) == 400 * len(texts)
