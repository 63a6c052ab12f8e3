"""Workdirs at a URL: a checkpoint with checksums there is complete, and a run resumes from it."""

import hashlib
import json
import subprocess
import sys
import uuid

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from helpers.bucket import google_bucket

from firth.distributed import job
from firth.errors import FirthError
from firth.storage import remote
from firth.training import remote_workdir
from firth.training.remote_workdir import (
    TakenOverError,
    download_workdir,
    is_local_copy,
    local_workdir,
    upload_workdir,
)


@pytest.fixture
def url(request):
    """A workdir that nobody has begun, in memory or, where a test asks for it, in a bucket."""
    if getattr(request, "param", "memory") == "memory":
        yield f"memory://{uuid.uuid4().hex}/run"
    else:
        with google_bucket() as (place, _):
            yield place


KINDS = pytest.mark.parametrize("url", ["memory", "gs"], indirect=True)


@pytest.fixture
def host(tmp_path, monkeypatch):
    """`host("a")`: from now on this is machine a, with a disk of its own."""

    def go(name):
        monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / name))

    go("a")
    return go


def checkpoint(folder, step, checksums=True, word="weights"):
    """An artificial checkpoint with checksums as `Checkpoints` writes them, and a journal."""
    digests = {}
    for name in ("state/d/one", "state/two", "meta"):
        path = folder / "checkpoints" / str(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{word} {step} {name}")
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    with (folder / "metrics.jsonl").open("a") as journal:
        journal.write(json.dumps({"step": step}) + "\n")
    (folder / "config.json").write_text("{}")
    (folder / "seals").mkdir(exist_ok=True)
    if checksums:
        (folder / "seals" / f"{step}.json").write_text(json.dumps(digests))


def drop(folder, step):
    """What the policies of `Checkpoints` do with an old one."""
    for path in sorted((folder / "checkpoints" / str(step)).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (folder / "checkpoints" / str(step)).rmdir()
    (folder / "seals" / f"{step}.json").unlink()


def contents(folder):
    """{name: bytes} of all that is not hidden."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    names = {p.relative_to(folder).as_posix(): p for p in files}
    return {n: p.read_bytes() for n, p in names.items() if not n.startswith(".")}


def at(url):
    """The same of a URL."""
    names = remote.sizes(url).keys() - {"owner.json"}
    return {name: remote.read_bytes(f"{url}/{name}") for name in names}


class Killed(BaseException):
    """Stands in for SIGKILL: nothing after it is done."""


def kill_at(monkeypatch, condition):
    """The process dies when it would upload such a file, and sends nothing any more."""

    def upload(path, url):
        if condition(url):
            monkeypatch.setattr(remote_workdir, "upload_workdir", lambda _: None)
            raise Killed
        remote.upload(path, url)

    monkeypatch.setattr(remote_workdir, "upload", upload)


def test_a_path_is_itself(tmp_path):
    with local_workdir(tmp_path / "run") as folder:
        assert folder == tmp_path / "run"
        upload_workdir(folder)
    assert not folder.exists()


@KINDS
def test_another_machine_goes_on(url, host):
    with local_workdir(url + "/") as first:
        checkpoint(first, 10)
        upload_workdir(first)
        assert at(url) == contents(first)
        checkpoint(first, 20)
        drop(first, 10)
        upload_workdir(first)
        assert at(url) == contents(first)
        with (first / "metrics.jsonl").open("a") as journal:
            journal.write("the end\n")
    host("b")
    with local_workdir(url) as second:
        assert second != first and contents(second) == contents(first)
        assert "the end" in (second / "metrics.jsonl").read_text()
        checkpoint(second, 30)
    host("a")
    with local_workdir(url) as third:
        assert third == first and contents(third) == contents(second)


@pytest.mark.parametrize("at_file", ["state/two", "metrics.jsonl", "seals/20.json"])
def test_killed_before_the_checksums_the_older_one_is_restored(url, host, monkeypatch, at_file):
    with monkeypatch.context() as patched, pytest.raises(Killed), local_workdir(url) as first:
        checkpoint(first, 10)
        upload_workdir(first)
        kill_at(patched, lambda url: url.endswith(at_file))
        checkpoint(first, 20)
        upload_workdir(first)
    assert any("/20/" in name for name in remote.sizes(url)) == (at_file != "checkpoints")
    host("b")
    with local_workdir(url) as second:
        assert [p.name for p in (second / "checkpoints").iterdir()] == ["10"]
        assert [p.name for p in (second / "seals").iterdir()] == ["10.json"]
        checkpoint(second, 20)
    host("c")
    with local_workdir(url) as third:
        assert contents(third) == contents(second) and (third / "checkpoints" / "20").is_dir()


def test_the_same_machine_keeps_what_it_had_not_sent(url, host, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(Killed), local_workdir(url) as first:
        checkpoint(first, 10)
        upload_workdir(first)
        kill_at(patched, lambda url: url.endswith("20.json"))
        checkpoint(first, 20)
        upload_workdir(first)
    with local_workdir(url) as again:
        assert {p.name for p in (again / "checkpoints").iterdir()} == {"10", "20"}
        upload_workdir(again)
        assert at(url) == contents(again)


def test_an_interrupted_fetch_goes_on(url, host, monkeypatch):
    with local_workdir(url) as first:
        checkpoint(first, 10)
    host("b")
    fetched = []

    def download(url, path, entry):
        if len(fetched) == 2:
            raise Killed
        fetched.append(path.name)
        remote.download(url, path, entry)

    monkeypatch.setattr(remote_workdir, "download", download)
    with pytest.raises(Killed), local_workdir(url):
        pass
    assert at(url).keys() >= {"seals/10.json"}
    done = list(fetched)
    fetched[:] = []
    with local_workdir(url) as second:
        assert contents(second) == contents(first)
    assert len(done) == 2 and len(fetched) == 1


def test_what_is_being_written_is_not_sent(url, host):
    with local_workdir(url) as folder:
        checkpoint(folder, 10)
        checkpoint(folder, 20, checksums=False)
        (folder / ".lock").touch()
        (folder / "checkpoints-damaged" / "5").mkdir(parents=True)
        (folder / "checkpoints-damaged" / "5" / "x").touch()
        checkpoint(folder / "seed-0", 7)
        checkpoint(folder / "seed-0", 8, checksums=False)
        upload_workdir(folder / "seed-0")
        names = at(url).keys()
    assert "seed-0/seals/7.json" in names and "seals/10.json" in names
    assert not [n for n in names if "/20/" in n or "/8/" in n or "lock" in n or "damaged" in n]
    host("b")
    with local_workdir(url) as folder:
        assert (folder / "seed-0" / "checkpoints" / "7" / "meta").is_file()


def test_a_damaged_one_is_left_out(url, host, caplog):
    with local_workdir(url) as first:
        checkpoint(first, 10)
        checkpoint(first, 20)
    remote.write_bytes(f"{url}/checkpoints/20/state/two", b"weights 20 state/twp")
    host("b")
    with local_workdir(url) as second:
        assert [p.name for p in (second / "checkpoints").iterdir()] == ["10"]
    assert "checkpoints/20/state/two is damaged" in caplog.text
    remote.remove(f"{url}/checkpoints/10/meta")
    host("c")
    with pytest.raises(FirthError, match=r"no checkpoint at memory://.* can be read"):
        local_workdir(url).__enter__()
    assert "checkpoints/10/meta is missing" in caplog.text


@KINDS
def test_a_run_that_was_removed_begins_anew(url, host):
    with local_workdir(url) as first:
        checkpoint(first, 10)
    remote.remove(url)
    with local_workdir(url) as folder:
        assert contents(folder) == {}
    assert (folder.with_name(folder.name + ".old") / "seals" / "10.json").is_file()


def test_two_runs_at_one_url(url, host):
    message = r"another run writes to memory://.* \(on .*, process \d+, since .*, so this one ends"
    with pytest.raises(TakenOverError, match=message), local_workdir(url) as first:
        checkpoint(first, 10)
        upload_workdir(first)
        host("b")
        with local_workdir(url) as second:
            checkpoint(second, 20)
            upload_workdir(second)
            checkpoint(first, 30)
            upload_workdir(first)
    assert "seals/20.json" in at(url) and "seals/30.json" not in at(url)
    host("a")
    with local_workdir(url), pytest.raises(FirthError, match="another run is using memory://"):
        local_workdir(url).__enter__()


def test_a_failed_save_is_made_good(url, host, monkeypatch, caplog):
    def fail(path, url):
        raise FirthError(f"cannot write {url}: the network is away")

    with local_workdir(url) as folder:
        checkpoint(folder, 10)
        with monkeypatch.context() as patched:
            patched.setattr(remote_workdir, "upload", fail)
            upload_workdir(folder)
        assert "the network is away" in caplog.text and at(url) == {}
        checkpoint(folder, 20)
        upload_workdir(folder)
        assert at(url) == contents(folder)
    monkeypatch.setattr(remote_workdir, "upload", fail)
    with pytest.raises(FirthError, match="the network is away"), local_workdir(url) as folder:
        checkpoint(folder, 30)  # the end of a run says that not all is there


def test_a_bucket_that_cannot_be_written(url, host, monkeypatch):
    def refuse(self, path, value, **_):
        raise PermissionError("403: no storage.objects.create access")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(FirthError, match=r"cannot write memory://.*: PermissionError: 403"):
        local_workdir(url).__enter__()  # found at the start, not at the first save


def test_the_second_process_has_a_folder_of_its_own(url, host, tmp_path, monkeypatch):
    with local_workdir(url) as first:
        checkpoint(first, 10)
        for run in (first, first / "seed-0"):
            (run / "compiled").mkdir(parents=True)
            (run / "compiled" / "step-cache").write_text("a program")
        upload_workdir(first)
        before = at(url) | {"owner.json": remote.read_bytes(f"{url}/owner.json")}
        monkeypatch.setattr(job, "number", lambda: 1)
        with local_workdir(url) as second:  # on the same host, at the same time
            programs = {"compiled/step-cache", "seed-0/compiled/step-cache"}
            assert second != first and contents(second).keys() == programs
            assert (
                is_local_copy(second)
                and is_local_copy(second / "seed-0")
                and not is_local_copy(tmp_path)
            )
            (second / "epochs.json").write_text("{}")
        assert at(url) | {"owner.json": remote.read_bytes(f"{url}/owner.json")} == before


def test_reading(url, host):
    with pytest.raises(FirthError, match="is not a workdir: it has no config"):
        download_workdir(url)
    with local_workdir(url) as run:
        checkpoint(run, 10)
        upload_workdir(run)
        copy = download_workdir(url + "/")
        assert contents(copy) == contents(run) and copy != run
        assert download_workdir(url) == copy
        checkpoint(run, 20)
        upload_workdir(run)
        newer = download_workdir(url)
        assert contents(newer) == contents(run) and newer != copy
        assert not (copy / "checkpoints" / "20").exists()  # somebody may be reading it


def test_killed_at_any_file(tmp_path):
    """Processes that end while they send, on two machines in turn: all with checksums is whole."""
    program = """
import os, sys
sys.path.insert(0, sys.argv[3])
from test_remote_workdir import checkpoint
from firth.training import remote_workdir
left, upload = int(sys.argv[2]), remote_workdir.upload
def upload_or_die(path, url):
    global left
    left -= 1
    if not left:
        os._exit(9)
    upload(path, url)
remote_workdir.upload = upload_or_die
with remote_workdir.local_workdir(sys.argv[1]) as folder:
    known = [int(p.stem) for p in (folder / "seals").glob("*.json")]
    for step in range(max(known, default=0) + 1, 100):
        checkpoint(folder, step)
        remote_workdir.upload_workdir(folder)
"""
    far, newest = tmp_path / "far" / "run", 0
    for trial, uploads in enumerate((9, 15, 18, 23)):
        command = [sys.executable, "-c", program, f"file://{far}", str(uploads)]
        environment = {
            "FIRTH_CACHE": str(tmp_path / str(trial % 2)),
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        }
        command.append(str(__file__).rpartition("/")[0])
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 9, done.stderr
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("FIRTH_CACHE", str(tmp_path / "reader"))
            copy = download_workdir(f"file://{far}")
        steps = {int(p.name) for p in (copy / "checkpoints").iterdir()}
        for step in steps:
            assert (copy / "checkpoints" / str(step) / "meta").read_text() == f"weights {step} meta"
        assert max(steps) > newest
        newest = max(steps)
