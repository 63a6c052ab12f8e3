"""`firth train` of word vectors: it resumes to the byte and refuses bad input."""

import json
import signal

import numpy as np
import pytest

from firth import cli, recipe
from firth.data.corpus.store import open_store
from firth.display.runs import read_run
from firth.errors import FirthError
from firth.models.word_vectors import files
from firth.run.evaluator import evaluate
from firth.run.word_vectors import corpus, methods, training
from firth.train import train
from firth.training.journal import read_journal
from firth.weights.read import read_model

PLACES = ("kitchen", "river")
SMALL = ("dim=8", "min_count=2")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of 200 sentences: words of a kitchen, or of a river, and "the" among both."""
    folder, draw = tmp_path_factory.mktemp("words"), np.random.default_rng(0)
    lines = [
        " ".join(
            "the" if draw.random() < 0.3 else f"{PLACES[number % 2]}{draw.integers(8)}"
            for _ in range(draw.integers(4, 12))
        )
        for number in range(200)
    ]
    (folder / "text.txt").write_text("\n".join([*lines, "rare kitchen1"]) + "\n")
    argv = ["prepare", "--input", f"{folder}/text.txt", "--output", f"{folder}/store"]
    argv += ["--tokenizer", f"{folder}/tok", "--train-tokenizer", "word", "--sentences", "line"]
    assert cli.main(argv) == 0
    return folder / "store"


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """Pieces so small that an epoch has several."""
    monkeypatch.setattr(corpus, "PIECE", 600)
    monkeypatch.setattr(methods, "CELLS", 128)


def config(store, name, *changes, epochs=2):
    fields = [f"--config.data.store={store}", f"--config.epochs={epochs}"]
    fields += [f"--config.model.{change}" for change in SMALL]
    return recipe.read_recipe(name, [*fields, *(f"--config.{change}" for change in changes)])


NAMES = ("word2vec.py:skipgram", "word2vec.py:cbow,loss=hierarchical", "glove.py")


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_goes_on_to_the_same_bytes(store, tmp_path, monkeypatch, name):
    always = "checkpoint.minutes=0.0"
    assert train(config(store, name, always), tmp_path / "whole")["loss"] > 0
    save, saved = training._save, []

    def killed(workdir, step, *rest):
        save(workdir, step, *rest)
        saved.append(step)
        if len(saved) == 2:
            raise RuntimeError("killed")

    monkeypatch.setattr(training, "_save", killed)
    with pytest.raises(RuntimeError):
        train(config(store, name, always), tmp_path / "parts")
    assert saved == [1, 2] and read_run(tmp_path / "parts").state == "stopped"
    assert not files.is_word_vectors(tmp_path / "parts")
    with pytest.raises(FirthError, match="holds a run of another config"):
        train(config(store, name, always, "seed=1"), tmp_path / "parts")
    train(config(store, name, always), tmp_path / "parts")
    whole, parts = ((tmp_path / w / files.TABLES).read_bytes() for w in ("whole", "parts"))
    assert whole == parts
    assert not (tmp_path / "parts" / training.SAVE).exists()
    journals = [read_journal(tmp_path / w) for w in ("whole", "parts")]
    losses = [[(entry["step"], entry["train/loss"]) for entry in journal] for journal in journals]
    assert losses[0] == losses[1] and losses[0][-1][1] < losses[0][0][1]


def test_every_piece_is_read_once(store):
    opened = open_store(store)
    text = corpus.read_corpus(opened, opened.tokenizer(), "sentence", 2, 0)
    words, units = map(np.concatenate, zip(*map(text.piece, range(text.pieces)), strict=True))
    assert text.pieces == 3 and len(words) - len(text) < 3
    np.testing.assert_array_equal(words[: len(text)], text.rows[opened.tokens])
    assert (words[len(text) :] == -1).all()
    begins = np.flatnonzero(np.diff(units[: len(text)], prepend=0))
    np.testing.assert_array_equal(begins, opened.sentences[:-1])


def test_sigterm_saves_and_ends(store, tmp_path, monkeypatch):
    run = config(store, NAMES[0])
    prepare = methods.Word2Vec.prepare

    def stopped(self, step):
        if step == 2:
            signal.raise_signal(signal.SIGTERM)
        return prepare(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(methods.Word2Vec, "prepare", stopped)
        with pytest.raises(SystemExit) as ended:
            train(run, tmp_path / "w")
    assert ended.value.code == 143 and (tmp_path / "w" / training.SAVE).is_file()
    train(run, tmp_path / "w")
    train(run, tmp_path / "other")
    assert (tmp_path / "w" / files.TABLES).read_bytes() == (
        tmp_path / "other" / files.TABLES
    ).read_bytes()


@pytest.mark.parametrize("name", ["word2vec.py:skipgram", "word2vec.py:cbow", *NAMES[1:]])
def test_words_of_one_place_are_near_each_other(store, tmp_path, name):
    train(config(store, name, epochs=40), tmp_path / "w")
    words, spec = files.load(tmp_path / "w")
    vocab = open_store(store).tokenizer().vocab
    names = [vocab[number] for number in words.ids]
    assert "rare" not in names and "<unk>" not in names and "<eos>" not in names
    assert names[0] == "the" and (np.diff(words.counts) <= 0).all()
    assert words.counts.sum() == open_store(store).num_tokens - 1
    assert spec["words"] == 17 and spec["dim"] == 8
    unit = words.vectors / np.linalg.norm(words.vectors, axis=1, keepdims=True)
    nearest = (unit[1:] @ unit[1:].T - 2 * np.eye(16)).argmax(1)
    kinds = np.array([name[0] for name in names[1:]])
    assert (kinds == kinds[nearest]).mean() > 0.9


def test_a_finished_run_is_kept_and_others_refuse_it(store, tmp_path, capsys):
    workdir = tmp_path / "w"
    train(config(store, NAMES[0]), workdir)
    before = (workdir / files.TABLES).stat().st_mtime_ns
    assert train(config(store, NAMES[0]), workdir) == {}
    assert (workdir / files.TABLES).stat().st_mtime_ns == before
    with pytest.raises(FirthError, match="has finished with epochs=2"):
        train(config(store, NAMES[0], epochs=3), workdir)
    run = read_run(workdir)
    assert (run.state, run.steps) == ("finished", run.step) and run.speed > 0
    with pytest.raises(FirthError, match="which no held-out text measures"):
        evaluate(workdir)
    with pytest.raises(FirthError, match="holds word vectors, which have no layers"):
        read_model(workdir)
    assert json.loads((workdir / "config.json").read_text())["model"]["family"] == "word2vec"


def test_a_damaged_save_and_a_changed_store_are_named(store, tmp_path, monkeypatch):
    run = config(store, NAMES[0], "checkpoint.minutes=0.0")
    save = training._save

    def killed(*arguments):
        save(*arguments)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(training, "_save", killed)
        with pytest.raises(RuntimeError):
            train(run, tmp_path / "w")
    path = tmp_path / "w" / training.SAVE
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FirthError, match=r"progress\.checkpoint is damaged"):
        train(run, tmp_path / "w")
    path.write_bytes(whole)
    with pytest.raises(FirthError, match="the store has changed"):
        training._restore(tmp_path / "w", None, "another digest")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.within=line"], "expected one of sentence, document"),
        (["model.loss=softmax"], "model.loss='softmax': expected one of negative, hierarchical"),
        (["model.dim=0"], "model.dim=0: expected at least 1"),
        (["model.sample=-1.0"], "model.sample=-1.0: expected 0 or more"),
        (["model.min_count=10000"], "the corpus is too small: 0 of its words"),
        (["lr=0.0"], "a rate above 0"),
        (["data.store=gone"], "gone is not a corpus store"),
        (["data.store="], r"data\.store is not set"),
    ],
)
def test_bad_input(store, tmp_path, changes, said):
    with pytest.raises(FirthError, match=said):
        train(config(store, NAMES[0], *changes), tmp_path / "w")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_diverges_says_so(store, tmp_path, name):
    with pytest.raises(FirthError, match=r"not finite.*give a smaller rate"):
        train(config(store, name, "lr=1e38", epochs=1), tmp_path / "w")
    assert not files.is_word_vectors(tmp_path / "w")


def test_a_store_of_subwords_is_taken_and_said(tmp_path, caplog, monkeypatch):
    (tmp_path / "t.txt").write_text("the vase broke on the river\n" * 50)
    argv = ["prepare", f"--input={tmp_path}/t.txt", f"--output={tmp_path}/s"]
    argv += [f"--tokenizer={tmp_path}/tok", "--train-tokenizer=wordpiece", "--vocab-size=40"]
    assert cli.main(argv) == 0
    caplog.set_level("INFO", "firth")
    train(config(tmp_path / "s", NAMES[0]), tmp_path / "w")
    assert "kind wordpiece, so the vectors are of its pieces" in caplog.text
