"""Local paths and URLs by one interface."""

import hashlib
import uuid

import pytest
from helpers.bucket import google_bucket

from firth.errors import FirthError
from firth.storage import remote

CONTENT = bytes(range(256)) * 40
ENTRY = {"bytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}


@pytest.fixture(params=["memory", "file", "gs"])
def url(request, tmp_path):
    """An empty place of each kind."""
    if request.param == "gs":
        with google_bucket() as (place, _):
            yield place
    elif request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}"
    else:
        yield f"file://{tmp_path}/far"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("gs://b/x", True), ("memory://x", True), ("a/b", False), ("tfds:glue:x", False), ("", False)],
)
def test_what_is_a_url(path, expected):
    assert remote.is_url(path) == expected


def test_files_come_back(url, tmp_path):
    assert remote.sizes(url) == {} and remote.read_bytes(f"{url}/a") is None
    remote.probe(url)
    assert remote.sizes(url) == {}
    remote.write_bytes(f"{url}/a", b"one")
    (tmp_path / "b").write_bytes(CONTENT)
    remote.upload(tmp_path / "b", f"{url}/deep/er/b")
    assert remote.sizes(url) == {"a": 3, "deep/er/b": len(CONTENT)}
    assert remote.sizes(f"{url}/") == remote.sizes(url)
    assert remote.sizes(f"{url}/a") == {}  # a file has no files under it
    assert remote.read_bytes(f"{url}/a") == b"one"
    (found,) = remote.list_files(f"{url}/**/b")
    assert remote.list_files(f"{url}/deep/er/b") == [found] and remote.about(found)["size"] == len(
        CONTENT
    )
    with remote.open_binary(found) as file:
        assert file.read() == CONTENT and file.tell() == len(CONTENT)
    assert all(
        isinstance(remote.about(name)["size"], int) for name in remote.list_files(f"{url}/**")
    )
    remote.write_bytes(f"{url}/deeper", b"has a name that begins alike")
    remote.remove(f"{url}/deep")
    remote.remove(f"{url}/deep")
    assert remote.sizes(url).keys() == {"a", "deeper"}


def test_a_file_system_shows_whole_files_as_a_bucket_does(tmp_path, monkeypatch):
    remote.write_bytes(f"file://{tmp_path}/far/a", b"old")
    (tmp_path / "new").write_bytes(b"new")

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr("os.replace", fail)
    for write in (
        lambda: remote.write_bytes(f"file://{tmp_path}/far/a", b"new"),
        lambda: remote.upload(tmp_path / "new", f"file://{tmp_path}/far/a"),
    ):
        with pytest.raises(FirthError, match=r"cannot write file://.*/far/a: OSError: no"):
            write()
        assert (tmp_path / "far" / "a").read_bytes() == b"old"


def test_a_large_file_is_sent_in_pieces(url, tmp_path):
    (tmp_path / "b").write_bytes(CONTENT * 600)  # 6 MB
    remote.upload(tmp_path / "b", f"{url}/b")
    assert remote.read_bytes(f"{url}/b") == CONTENT * 600


def test_local_files_are_written_whole(tmp_path, monkeypatch):
    remote.write_bytes(tmp_path / "a", b"old")

    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no"):
        remote.write_bytes(tmp_path / "a", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert remote.read_bytes(tmp_path / "a") == b"old" and remote.read_bytes(tmp_path / "b") is None


def test_an_interrupted_copy_goes_on(url, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_CHUNK", 1000)
    remote.write_bytes(f"{url}/a", CONTENT)
    fetched, fails = [], [5]

    class Wire:
        """A file that the network takes away after some reads."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def seek(self, at):
            self.file.seek(at)

        def read(self, size):
            if fails and fails[0] == len(fetched):
                fails.pop()
                raise ConnectionError("reset by peer")
            fetched.append(self.file.read(size))
            return fetched[-1]

    whole = remote.open_binary
    monkeypatch.setattr(remote, "open_binary", lambda url: Wire(whole(url)))
    with pytest.raises(FirthError, match=r"cannot copy .*/a: ConnectionError: reset by peer"):
        remote.download(f"{url}/a", tmp_path / "a", ENTRY)
    assert not (tmp_path / "a").exists() and (tmp_path / "a.part").stat().st_size == 5000
    remote.download(f"{url}/a", tmp_path / "a", ENTRY)
    assert (tmp_path / "a").read_bytes() == CONTENT and not (tmp_path / "a.part").exists()
    assert sum(map(len, fetched)) == len(CONTENT)  # nothing twice


def test_a_wrong_beginning_is_fetched_again(url, tmp_path):
    remote.write_bytes(f"{url}/a", CONTENT)
    for wrong in (b"x" * 5000, CONTENT + b"more", CONTENT[:-1] + b"x"):
        (tmp_path / "a.part").write_bytes(wrong)
        remote.download(f"{url}/a", tmp_path / "a", ENTRY)
        assert (tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [CONTENT[:300] + b"x" + CONTENT[301:], CONTENT[:-1], CONTENT + b"x", b""],
    ids=["flipped", "short", "long", "empty"],
)
def test_another_file_than_described_is_named(url, tmp_path, content):
    remote.write_bytes(f"{url}/a", content)
    with pytest.raises(FirthError, match=r"/a is damaged"):
        remote.download(f"{url}/a", tmp_path / "a", ENTRY)
    assert list(tmp_path.glob("a*")) == []


def test_what_cannot_be_reached(tmp_path):
    with pytest.raises(FirthError, match="Protocol not known: nowhere; the package"):
        remote.probe("nowhere://bucket")
    (tmp_path / "taken").write_text("a file where the folder would be")
    with pytest.raises(FirthError, match=r"cannot write file://.*taken/.*; check the address"):
        remote.probe(f"file://{tmp_path}/taken/run")


def test_a_bucket_without_leave_to_write():
    with google_bucket() as (url, server):
        server.read_only = True
        with pytest.raises(FirthError, match=r"cannot write gs://bucket/place/.*Forbidden"):
            remote.probe(url)


def test_the_cache_is_where_it_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path))
    folder = remote.cache_folder("stores", "gs://bucket/wiki/", "0123456789abcdef0123")
    assert folder == tmp_path / "stores" / "wiki-0123456789abcdef" and folder.is_dir()
    assert remote.cache_folder("runs", "gs://a/x/") == remote.cache_folder("runs", "gs://a/x")
    assert remote.cache_folder("runs", "gs://a/x") != remote.cache_folder("runs", "gs://b/x")
    monkeypatch.setenv("FIRTH_CACHE", "/proc/none")
    with pytest.raises(FirthError, match="set FIRTH_CACHE"):
        remote.cache_folder("stores", "gs://bucket/wiki")


def test_a_pattern_finds_files_alone(url, tmp_path):
    for name in ("a/x.txt", "a/b/y.txt", "a/b/z.bin"):
        remote.write_bytes(f"{url}/{name}", b"1")
    found = remote.list_files(f"{url}/a/*")
    assert [name.rpartition("/")[2] for name in found] == ["x.txt"]
    assert [name.rpartition("/")[2] for name in remote.list_files(f"{url}/**/*.txt")] == [
        "y.txt",
        "x.txt",
    ]
