"""`firth prepare`: the right store, the same bytes by any road, and nothing half-written."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.corpora import as_text, make_documents, same_files

from firth.commands.prepare import main
from firth.data.corpus.parts import Options, Part, load_part, save_part
from firth.data.corpus.prepare import prepare
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer, train_tokenizer


def run(program, *arguments, **options):
    """Start Python with the arguments; the program has `main` of firth prepare at hand."""
    program = f"import sys\nfrom firth.commands.prepare import main\n{program}"
    return subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], **options)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A directory with a trained tokenizer."""
    path = tmp_path_factory.mktemp("tokenizer")
    lines = [" ".join(line) for d in make_documents(50) for line in d]
    train_tokenizer("wordpiece", lines, 200).save(path)
    return path


@pytest.fixture
def corpus(tmp_path):
    """A text file of 120 documents, and the documents."""
    documents = make_documents(120, seed=1)
    (tmp_path / "corpus.txt").write_text(as_text(documents), encoding="utf-8")
    return tmp_path / "corpus.txt", documents


def command(corpus, tokenizer, output, *options):
    return [
        "--input",
        str(corpus),
        "--tokenizer",
        str(tokenizer),
        "--output",
        str(output),
        *options,
    ]


@pytest.mark.parametrize("sentences", ["split", "line"])
def test_the_store_holds_the_corpus(tmp_path, tokenizer, corpus, sentences):
    path, documents = corpus
    options = ["--workers=1", f"--sentences={sentences}"]
    assert main(command(path, tokenizer, tmp_path / "store", *options)) == 0
    store = open_store(tmp_path / "store")
    if sentences == "line":
        documents = [[[" ".join(line)] for line in d] for d in documents]
    expected = [[s for line in d for s in line] for d in documents]
    assert np.diff(store.documents).tolist() == [len(d) for d in expected]
    ids = [e.ids for e in load_tokenizer(tokenizer).encode([s for d in expected for s in d])]
    np.testing.assert_array_equal(np.diff(store.sentences), [len(n) for n in ids])
    np.testing.assert_array_equal(store.tokens, np.concatenate(ids))
    assert store.tokens.dtype == np.uint16
    assert store.manifest["input"] == [{"name": "corpus.txt", "bytes": path.stat().st_size}]
    assert store.manifest["options"]["sentences"] == sentences
    assert str(tmp_path) not in (tmp_path / "store" / "manifest.json").read_text()
    assert sorted(os.listdir(tmp_path)) == ["corpus.txt", "store"]


def test_bytes_do_not_depend_on_workers_or_blocks(tmp_path, tokenizer, corpus):
    path, _ = corpus
    loaded = load_tokenizer(tokenizer)
    runs = {"one": (1, 2 << 20), "two": (2, 3000), "small": (1, 500), "smaller": (1, 350)}
    for name, (workers, block_bytes) in runs.items():
        prepare([str(path)], loaded, tmp_path / name, workers=workers, block_bytes=block_bytes)
        assert same_files(tmp_path / "one", tmp_path / name)


def test_every_packing_gives_the_same_arrays(tmp_path, tokenizer, corpus):
    path, documents = corpus
    texts = ["\n".join(" ".join(line) for line in d) for d in documents]
    files = {"jsonl": tmp_path / "c.jsonl.gz", "csv": tmp_path / "c.csv", "files": tmp_path / "d"}
    with gzip.open(files["jsonl"], "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"body": t}) + "\n" for t in texts)
    rows = "".join('1,"' + t.replace('"', '""') + '"\n' for t in texts)
    files["csv"].write_text("id,body\n" + rows, encoding="utf-8")
    files["files"].mkdir()
    for n, text in enumerate(texts):
        (files["files"] / f"{n:04d}.txt").write_text(text.replace("\n", "\n\n"), encoding="utf-8")
    main(command(path, tokenizer, tmp_path / "text", "--workers=1"))
    for name in ("jsonl", "csv"):
        main(command(files[name], tokenizer, tmp_path / name, "--workers=1", "--field=body"))
    pattern = files["files"] / "*.txt"
    main(command(pattern, tokenizer, tmp_path / "files", "--workers=1", "--document=file"))
    for name in files:
        for array in ("tokens.npy", "sentences.npy", "documents.npy"):
            expected = (tmp_path / "text" / array).read_bytes()
            assert (tmp_path / name / array).read_bytes() == expected, (name, array)


def test_a_large_vocabulary_is_stored_in_uint32(tmp_path, shared_data):
    (tmp_path / "c.txt").write_text("花瓶碎了。 The vase broke.", encoding="utf-8")
    vocab = shared_data("vocabs/bert-base-multilingual-cased-vocab.txt")
    main(command(tmp_path / "c.txt", vocab, tmp_path / "store", "--workers=1"))
    store = open_store(tmp_path / "store")
    assert store.tokens.dtype == np.uint32 and store.num_sentences == 2
    assert store.tokenizer().vocab_size > 65_536


SLOW = """
import time, firth.data.corpus.parts as parts
encode_blocks = parts.encode_blocks
def slow(*arguments):
    time.sleep(0.02)
    return encode_blocks(*arguments)
parts.encode_blocks = slow
"""
PREPARE = """
from firth.data.corpus.prepare import prepare
from firth.tokenizers.load import load_tokenizer
corpus, tokenizer, output, workers = sys.argv[1:]
prepare([corpus], load_tokenizer(tokenizer), output, workers=int(workers), block_bytes=800)
"""


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, tokenizer, corpus):
    path, _ = corpus
    prepare([str(path)], load_tokenizer(tokenizer), tmp_path / "whole", workers=1, block_bytes=800)
    parts = tmp_path / "store.partial" / "parts"
    seen = {}
    for kill in range(3):
        process = run(
            SLOW + PREPARE, path, tokenizer, tmp_path / "store", 1, stderr=subprocess.PIPE
        )
        enough = len(seen) + 5
        wait_for(lambda enough=enough: len(list(parts.glob("*.npz"))) >= enough)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert (b"resuming with" in process.stderr.read()) == (kill > 0)
        assert not (tmp_path / "store").exists()
        now = {p.name: p.stat().st_mtime_ns for p in parts.glob("*.npz")}
        assert seen.items() <= now.items()  # no part was made twice
        seen = now
    first = sorted(parts.glob("*.npz"))[0]
    first.write_bytes(first.read_bytes()[:-40])  # as after a power cut: made again
    store = prepare(
        [str(path)], load_tokenizer(tokenizer), tmp_path / "store", workers=1, block_bytes=800
    )
    assert same_files(tmp_path / "whole", store.path)
    assert not parts.exists()


def test_workers_end_with_a_killed_parent(tmp_path, tokenizer, corpus):
    path, _ = corpus
    path.write_text(path.read_text(encoding="utf-8") * 100, encoding="utf-8")
    process = run(PREPARE, path, tokenizer, tmp_path / "store", 2, stderr=subprocess.DEVNULL)
    parts = tmp_path / "store.partial" / "parts"
    wait_for(lambda: len(list(parts.glob("*.npz"))) >= 5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) >= 2
    process.kill()
    process.wait()

    def running(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
        except FileNotFoundError:
            return False

    wait_for(lambda: not any(running(pid) for pid in children))


@pytest.mark.parametrize("change", ["input", "tokenizer", "options", "nothing"])
def test_parts_are_used_again_only_if_nothing_changed(tmp_path, tokenizer, corpus, change, capsys):
    path, _ = corpus
    process = run(SLOW + PREPARE, path, tokenizer, tmp_path / "store", 1)
    parts = tmp_path / "store.partial" / "parts"
    wait_for(lambda: len(list(parts.glob("*.npz"))) >= 3)
    process.kill()
    process.wait()
    loaded, options = load_tokenizer(tokenizer), Options()
    if change == "input":
        os.utime(path, ns=(1, 1))
    if change == "tokenizer":
        loaded = load_tokenizer(tokenizer, strip_accents=False)
    if change == "options":
        options = Options(sentences="line")
    arguments = dict(options=options, workers=1, block_bytes=800)
    store = prepare([str(path)], loaded, tmp_path / "store", **arguments)
    note = capsys.readouterr().err
    assert ("resuming with" if change == "nothing" else "starting over") in note
    whole = prepare([str(path)], loaded, tmp_path / "whole", **arguments)
    assert same_files(whole.path, store.path)


def test_a_run_killed_before_the_last_rename_is_finished(tmp_path, tokenizer, corpus):
    path, _ = corpus
    program = "import os; from pathlib import Path; Path.rename, rename = (\n"
    program += (
        "    lambda p, to: os._exit(9) if p.name == 'store' else rename(p, to)), Path.rename\n"
    )
    process = run(program + PREPARE, path, tokenizer, tmp_path / "out", 1)
    assert process.wait() == 9
    assert (tmp_path / "out.partial" / "store" / "manifest.json").exists()
    prepare([str(path)], load_tokenizer(tokenizer), tmp_path / "out", block_bytes=800, workers=1)
    prepare([str(path)], load_tokenizer(tokenizer), tmp_path / "whole", workers=1)
    assert same_files(tmp_path / "whole", tmp_path / "out")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_keeps_the_parts(tmp_path, tokenizer, corpus, workers):
    """A file-size limit stands in for the full disk: write() fails with OSError just so."""
    path, _ = corpus
    path.write_text(path.read_text(encoding="utf-8") * 20, encoding="utf-8")
    program = """
import resource
from firth.errors import FirthError
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
try:
    prepare([corpus], load_tokenizer(tokenizer), output, workers=int(workers), block_bytes=20_000)
except FirthError as error:
    print(error)
"""
    program = PREPARE.rpartition("prepare(")[0] + program
    arguments = (path, tokenizer, tmp_path / "store", workers)
    process = run(program, *arguments, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    assert process.returncode == 0
    assert "cannot write" in output and "File too large" in output and "tokens.npy" in output
    assert not (tmp_path / "store").exists()
    assert not list((tmp_path / "store.partial").glob("store*"))
    assert list((tmp_path / "store.partial" / "parts").glob("*.npz"))
    again = prepare([str(path)], load_tokenizer(tokenizer), tmp_path / "store", block_bytes=20_000)
    whole = prepare([str(path)], load_tokenizer(tokenizer), tmp_path / "whole", workers=1)
    assert same_files(whole.path, again.path)


def test_overwrite(tmp_path, tokenizer, corpus):
    path, _ = corpus
    arguments = command(path, tokenizer, tmp_path / "store", "--workers=1")
    main(arguments)
    before = open_store(tmp_path / "store").digest
    with pytest.raises(FirthError, match="exists; replace it with --overwrite"):
        main(arguments)
    (tmp_path / "corpus.txt").write_text("Another corpus.")
    with pytest.raises(FirthError, match="not UTF-8"):  # a failed run leaves the store alone
        (tmp_path / "bad.txt").write_bytes(b"\xff")
        main(command(tmp_path / "bad.txt", tokenizer, tmp_path / "store", "--overwrite"))
    assert open_store(tmp_path / "store").digest == before
    main([*arguments, "--overwrite"])
    assert open_store(tmp_path / "store").num_documents == 1
    assert sorted(os.listdir(tmp_path)) == ["bad.txt", "corpus.txt", "store"]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").touch()
    with pytest.raises(FirthError, match="is not a corpus store"):
        main(command(path, tokenizer, tmp_path / "home", "--overwrite"))


def test_two_runs_do_not_write_one_store(tmp_path, tokenizer, corpus):
    path, _ = corpus
    process = run(SLOW + PREPARE, path, tokenizer, tmp_path / "store", 1)
    wait_for(lambda: (tmp_path / "store.partial" / "parts").exists())
    with pytest.raises(FirthError, match="another firth prepare is writing"):
        main(command(path, tokenizer, tmp_path / "store"))
    process.kill()
    process.wait()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_tokenizer_trained_on_the_way(tmp_path, corpus, kind):
    path, _ = corpus
    options = [f"--train-tokenizer={kind}", "--vocab-size=330", "--workers=1"]
    if kind == "unigram":
        options[1] = "--vocab-size=60"
    main(command(path, tmp_path / "tok", tmp_path / "store", *options))
    store = open_store(tmp_path / "store")
    tokenizer = load_tokenizer(tmp_path / "tok")
    store.check_tokenizer(tokenizer)
    assert tokenizer.kind == kind and tokenizer.vocab_size <= 330
    assert tokenizer.unk_id not in store.tokens
    made = (tmp_path / "tok" / "tokenizer_config.json").stat().st_mtime_ns
    main(command(path, tmp_path / "tok", tmp_path / "store2", *options))  # used as it is
    assert (tmp_path / "tok" / "tokenizer_config.json").stat().st_mtime_ns == made
    assert same_files(tmp_path / "store", tmp_path / "store2")
    other = "--train-tokenizer=bpe" if kind == "wordpiece" else "--train-tokenizer=wordpiece"
    with pytest.raises(FirthError, match=f"holds a {kind} tokenizer, not the"):
        main(command(path, tmp_path / "tok", tmp_path / "store3", other))


def test_cased_and_lowercase(tmp_path, corpus):
    path, _ = corpus
    for name, option, expected in (("a", "--cased", "The"), ("b", "--lowercase", "the")):
        train = ["--train-tokenizer=wordpiece", "--vocab-size=200", option, "--workers=1"]
        main(command(path, tmp_path / f"tok-{name}", tmp_path / name, *train))
        store = open_store(tmp_path / name)
        assert store.tokenizer().token(store.tokens[0]) == expected


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"", [], "the input holds no text"),
        (b"\n \n\x00\n\n", [], "the input holds no text"),
        (b"a\nb \xff", [], "corpus.txt:2: not UTF-8: byte 0xff at offset 4; .*--errors=replace"),
        (b'{"a": "b"}\nc', ["--format=jsonl", "--field=a"], "corpus.txt:2: not valid JSON"),
        (b'{"a": "b"}', ["--format=jsonl"], "corpus.txt:1: no field 'text'; the fields are a;"),
    ],
)
@pytest.mark.parametrize("workers", ["--workers=1", "--workers=2"])
def test_bad_input_leaves_no_store(tmp_path, tokenizer, text, options, message, workers):
    (tmp_path / "corpus.txt").write_bytes(text)
    arguments = command(tmp_path / "corpus.txt", tokenizer, tmp_path / "store", workers, *options)
    with pytest.raises(FirthError, match=message) as caught:
        main(arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "store").exists()
    assert not (tmp_path / "store.partial" / "store").exists()


def test_bad_requests(tmp_path, tokenizer, corpus):
    path, _ = corpus
    with pytest.raises(FirthError, match=r"there is no tokenizer at .*--train-tokenizer"):
        main(command(path, tmp_path / "absent", tmp_path / "store"))
    with pytest.raises(FirthError, match="the pattern matches none"):
        main(command(tmp_path / "*.md", tokenizer, tmp_path / "store"))
    with pytest.raises(FirthError, match="--workers: '0' is not a positive"):
        main(command(path, tokenizer, tmp_path / "store", "--workers=0"))
    with pytest.raises(FirthError, match="sentences is 'words'; expected one of split, line"):
        options = Options(sentences="words")
        prepare([str(path)], load_tokenizer(tokenizer), tmp_path / "store", options)
    assert os.listdir(tmp_path) == ["corpus.txt"]


def test_replace(tmp_path, tokenizer):
    (tmp_path / "corpus.txt").write_bytes(b"the vase \xff broke")
    options = ["--errors=replace", "--workers=1"]
    main(command(tmp_path / "corpus.txt", tokenizer, tmp_path / "store", *options))
    store = open_store(tmp_path / "store")
    assert store.tokenizer().decode(store.tokens) == "the vase broke"


def test_a_damaged_part_is_not_taken_for_one(tmp_path, tokenizer, corpus):
    prepared = prepare([str(corpus[0])], load_tokenizer(tokenizer), tmp_path / "s", workers=1)
    part = (prepared.tokens[:9], np.array([4, 5], np.uint32), np.array([2], np.uint32), False)
    path = tmp_path / "part.npz"
    save_part(path, Part(*part))
    for loaded, expected in zip(load_part(path), part, strict=True):
        np.testing.assert_array_equal(loaded, expected)
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        loaded = load_part(path)
        same = loaded is not None and all(
            np.array_equal(a, b) for a, b in zip(loaded, part, strict=True)
        )
        assert loaded is None or same  # some bytes of a .zip mean nothing
    assert load_part(tmp_path / "absent.npz") is None


def test_help_is_fast_and_light():
    program = """
import time; begin = time.perf_counter()
import sys
from firth.commands.prepare import main
try: main(["--help"])
except SystemExit as stop: assert not stop.code
heavy = {"jax", "tokenizers", "sentencepiece", "rich", "transformers", "tensorflow"}
print(time.perf_counter() - begin, heavy & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    seconds, loaded = done.stdout.strip().splitlines()[-1].split(" ", 1)
    assert loaded == "set()" and float(seconds) < 1.5
