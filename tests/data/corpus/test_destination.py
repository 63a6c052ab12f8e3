"""Where a store goes: a URL like a folder, complete or not at all."""

import sys
import uuid

import pytest
from helpers.corpora import as_text, make_documents, same_files

from firth.commands.prepare import main
from firth.data.corpus import destination
from firth.data.corpus.prepare import prepare
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.storage import remote
from firth.tokenizers.load import train_tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder with a text and a tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    documents = make_documents(20)
    (folder / "c.txt").write_text(as_text(documents), encoding="utf-8")
    lines = [" ".join(line) for d in documents for line in d]
    train_tokenizer("word", lines).save(folder / "tok")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))


def command(corpus, output, *options):
    source = ["--input", str(corpus / "c.txt"), "--tokenizer", str(corpus / "tok")]
    return [*source, "--output", str(output), "--workers=1", *options]


def test_a_url_gets_the_bytes_that_a_folder_gets(corpus, tmp_path):
    main(command(corpus, tmp_path / "local"))
    url = f"file://{tmp_path}/bucket/store"
    main(command(corpus, url + "/"))
    assert same_files(tmp_path / "local", tmp_path / "bucket" / "store")
    assert [p.name for p in (tmp_path / "bucket").iterdir()] == ["store"]
    assert same_files(tmp_path / "local", open_store(url).path)


def test_text_at_a_url_is_read(corpus, tmp_path):
    place = f"memory://{uuid.uuid4().hex}"
    text = (corpus / "c.txt").read_bytes()
    remote.write_bytes(f"{place}/c.txt", text)
    main(command(corpus, tmp_path / "local"))
    main([f"{place}/*" if a.endswith("c.txt") else a for a in command(corpus, tmp_path / "far")])
    assert same_files(tmp_path / "local", tmp_path / "far")


def test_a_run_killed_while_it_copied_is_finished(corpus, monkeypatch):
    url = f"memory://{uuid.uuid4().hex}/store"
    with monkeypatch.context() as patched:
        patched.setattr(destination, "publish", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(command(corpus, url))
    assert remote.sizes(url) == {}
    monkeypatch.setattr("firth.data.corpus.prepare.make_parts", None)  # made already
    main(command(corpus, url))
    assert open_store(url).num_documents == 20


def test_what_is_there_is_left_alone(corpus, tmp_path):
    place = f"memory://{uuid.uuid4().hex}"
    main(command(corpus, f"{place}/store"))
    digest = open_store(f"{place}/store").digest
    with pytest.raises(FirthError, match="exists; replace it with --overwrite"):
        main(command(corpus, f"{place}/store"))
    assert open_store(f"{place}/store").digest == digest
    main(command(corpus, f"{place}/store", "--overwrite", "--sentences=line"))
    assert open_store(f"{place}/store").digest != digest
    remote.write_bytes(f"{place}/letters/a", b"dear")
    with pytest.raises(FirthError, match="is not a corpus store"):
        main(command(corpus, f"{place}/letters", "--overwrite"))
    (tmp_path / "taken").touch()
    with pytest.raises(FirthError, match=r"cannot write file://"):  # before any work is done
        prepare(["none"], None, f"file://{tmp_path}/taken/store")


def test_options_of_beam_need_a_runner(corpus, tmp_path):
    with pytest.raises(FirthError, match=r"--direct_num_workers=2 after -- is for Apache Beam"):
        main(command(corpus, tmp_path / "s", "--", "--direct_num_workers=2"))
    with pytest.raises(FirthError, match="--workers is for --runner=local; direct takes"):
        main(command(corpus, tmp_path / "s", "--runner=direct"))


def test_a_runner_without_beam(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)  # so that importing it fails
    monkeypatch.delitem(sys.modules, "firth.data.corpus.beam", raising=False)
    arguments = command(corpus, tmp_path / "s", "--runner=direct")
    with pytest.raises(FirthError, match=r"needs Apache Beam; .*firth\[beam\]"):
        main([a for a in arguments if a != "--workers=1"])
