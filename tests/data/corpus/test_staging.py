"""Remote stores: staged whole or not, checked, once a host."""

import json
import os
import shutil
import subprocess
import sys
import uuid

import numpy as np
import pytest

from firth.data.corpus import staging
from firth.data.corpus.manifest import manifest_text
from firth.data.corpus.prepare import prepare
from firth.data.corpus.staging import publish, stage
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.storage import remote
from firth.tokenizers.load import train_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A local store."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "c.txt").write_text("The vase broke. Nobody mended it.\n\nIt fell.\n" * 50)
    tokenizer = train_tokenizer("word", ["The vase broke . Nobody mended it fell It"])
    return prepare([str(folder / "c.txt")], tokenizer, folder / "store", workers=1)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def url(made):
    """A store at a URL."""
    place = f"memory://{uuid.uuid4().hex}/store"
    for name in remote.sizes(f"file://{made.path}"):
        remote.upload(made.path / name, f"{place}/{name}")
    return place


def count_downloads(monkeypatch):
    fetched, real = [], remote.download

    def counted(url, path, entry):
        fetched.append(path.name)
        real(url, path, entry)

    monkeypatch.setattr(staging, "download", counted)
    return fetched


def test_a_remote_store_is_opened_like_a_local_one(made, url, monkeypatch):
    fetched = count_downloads(monkeypatch)
    store = open_store(url)
    assert store.digest == made.digest
    np.testing.assert_array_equal(store.tokens, made.tokens)
    assert isinstance(store.tokens, np.memmap)
    assert store.tokenizer().digest == made.tokenizer().digest
    assert set(fetched) >= {"tokens.npy", "sentences.npy", "documents.npy"}
    fetched.clear()
    assert open_store(url + "/").path == store.path
    assert fetched == []  # once


def test_complete_files_are_kept_and_the_rest_is_fetched(url, monkeypatch):
    def die_at_tokens(url, path, entry):
        if path.name == "tokens.npy":
            raise KeyboardInterrupt
        remote.download(url, path, entry)

    monkeypatch.setattr(staging, "download", die_at_tokens)
    with pytest.raises(KeyboardInterrupt):
        stage(url)
    fetched = count_downloads(monkeypatch)
    there = {p.name for p in remote.cache_folder("stores", url).parent.rglob("*") if p.is_file()}
    assert "sentences.npy" in there and "manifest.json" not in there
    assert open_store(url).num_tokens
    assert "tokens.npy" in fetched and "sentences.npy" not in fetched


@pytest.mark.parametrize("name", ["tokens.npy", "documents.npy", "tokenizer/vocab.txt"])
def test_a_flipped_byte_is_named(made, url, name):
    name = name if (made.path / name).exists() else "tokenizer/tokenizer.json"
    content = bytearray((made.path / name).read_bytes())
    content[len(content) // 2] ^= 4
    remote.write_bytes(f"{url}/{name}", bytes(content))
    with pytest.raises(FirthError, match=f"{name} is damaged"):
        open_store(url)
    shutil.copy(made.path / name, remote.cache_folder("tmp", url) / "sound")
    remote.upload(remote.cache_folder("tmp", url) / "sound", f"{url}/{name}")
    assert open_store(url).digest == made.digest


def test_a_byte_flipped_in_the_local_copy_is_named(url):
    path = open_store(url).path / "tokens.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(FirthError, match=r"tokens\.npy is damaged: .*remove it and copy it again"):
        open_store(url)
    path.unlink()
    open_store(url)


def test_another_store_at_the_url_is_another_copy(made, url, tmp_path):
    first = open_store(url)
    (tmp_path / "c.txt").write_text("It fell.")
    other = prepare([str(tmp_path / "c.txt")], made.tokenizer(), tmp_path / "other", workers=1)
    manifest = other.manifest
    remote.write_bytes(f"{url}/stale.npy", b"of the old store")
    publish(other.path, url)
    second = open_store(url)
    assert second.path != first.path and second.manifest == manifest
    assert remote.sizes(url).keys() == {*manifest["files"], "manifest.json"}
    assert open_store(first.path).digest == made.digest


def test_publishing_ends_with_the_manifest(made, url, tmp_path, monkeypatch):
    shutil.copytree(made.path, tmp_path / "copy")
    place, order = f"{url}2", []

    def upload(path, url):
        if path.name == "tokens.npy" and not order.count("killed"):
            order.append("killed")
            raise KeyboardInterrupt
        order.append(path.name)
        remote.upload(path, url)

    monkeypatch.setattr(staging, "upload", upload)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "copy", place)
    with pytest.raises(FirthError, match="is not a corpus store: it has no manifest"):
        open_store(place)
    publish(tmp_path / "copy", place)
    assert order[-1] == "manifest.json"
    monkeypatch.setattr(staging, "download", None)  # the local copy is there already
    assert open_store(place).digest == made.digest


def test_two_processes_stage_once(made, tmp_path, cache):
    """The second waits for the first; both open the same sound copy."""
    program = """
import sys, time
from firth.storage import remote
from firth.data.corpus import staging
from firth.data.corpus.store import open_store
real = remote.download
def slow(url, path, entry):
    print("fetched", path.name)
    time.sleep(0.1)
    real(url, path, entry)
staging.download = slow
print("opened", open_store(sys.argv[1]).digest)
"""
    command = [sys.executable, "-c", program, f"file://{made.path}"]
    environment = os.environ | {"FIRTH_CACHE": str(cache)}
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    lines = [line for process in started for line in process.communicate()[0].splitlines()]
    assert lines.count(f"opened {made.digest}") == 2
    fetched = [line for line in lines if line.startswith("fetched")]
    assert len(fetched) == len(set(fetched)) == len(made.manifest["files"])


def test_a_manifest_cannot_write_elsewhere(url, made, tmp_path):
    for name in ("../../evil", "/tmp/evil", "a/../../evil", "./tokens.npy"):
        manifest = json.loads((made.path / "manifest.json").read_text())
        manifest["files"][name] = manifest["files"]["tokens.npy"]
        remote.write_bytes(f"{url}/manifest.json", manifest_text(manifest).encode())
        with pytest.raises(FirthError, match="a store has no such file"):
            open_store(url)


def test_what_is_not_there_or_does_not_fit(url, monkeypatch):
    with pytest.raises(FirthError, match=r"nowhere is not a corpus store: .*--output memory://"):
        open_store("memory://nowhere")
    remote.write_bytes("memory://nowhere2/manifest.json", b"<html>")
    with pytest.raises(FirthError, match=r"memory://nowhere2/manifest\.json is damaged"):
        open_store("memory://nowhere2")
    usage = shutil.disk_usage("/")._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(FirthError, match=r"has room for 10 bytes, but .* needs .* FIRTH_CACHE"):
        open_store(url)
