"""`firth train` and `firth evaluate` of a model that is counted."""

import json
import math

import numpy as np
import pytest

from firth import cli, recipe
from firth.data.corpus.store import open_store
from firth.data.corpus.stream import characters, read_stream
from firth.errors import FirthError
from firth.models.ngram import files
from firth.run import counted
from firth.run.evaluator import evaluate
from firth.train import train
from firth.training.journal import read_journal

WORDS = [f"w{n}" for n in range(600)]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The folder of two stores with one tokenizer and one with another."""
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(0)

    def lines(count):
        return [
            " ".join(WORDS[min(int(n), 600) - 1] for n in rng.zipf(1.4, rng.integers(2, 9)))
            for _ in range(count)
        ]

    for name, count in (("train", 900), ("test", 40), ("other", 30)):
        (folder / f"{name}.txt").write_text("\n".join(lines(count)) + "\n")
        tokenizer = ["--tokenizer", str(folder / ("tok2" if name == "other" else "tok"))]
        tokenizer += ["--train-tokenizer", "word"] if name != "test" else []
        paths = ["--input", str(folder / f"{name}.txt"), "--output", str(folder / name)]
        assert cli.main(["prepare", *paths, *tokenizer, "--sentences", "line"]) == 0
    return folder


def config(places, *changes, arg="order=3"):
    fields = [f"--config.data.store={places / 'train'}", *changes]
    return recipe.read_recipe(f"ngram.py:{arg}", fields)


@pytest.fixture(scope="module")
def run(places):
    """(workdir, what training returned) of a model with held-out text."""
    held = f"--config.data.heldout_store={places / 'test'}"
    workdir = places / "run"
    return workdir, train(config(places, held), workdir)


def test_the_stream_is_the_text_with_its_ends(places):
    store = open_store(places / "test")
    tokenizer = store.tokenizer()
    stream = read_stream(store, tokenizer, "sentence")
    vocab = set(tokenizer.vocab)
    lines = [
        " ".join(word if word in vocab else "<unk>" for word in line.split())
        for line in (places / "test.txt").read_text().splitlines()
    ]
    said = " ".join(tokenizer.token(token) for token in stream.tokens)
    assert said == " ".join(f"{line} <eos>" for line in lines)
    begins = np.cumsum([0] + [len(line.split()) + 1 for line in lines[:-1]])
    assert np.flatnonzero(stream.starts).tolist() == begins.tolist()
    assert "<unk>" in said
    assert characters(stream, tokenizer) == len("\n".join(lines)) + 1
    whole = read_stream(store, tokenizer, "document")
    assert whole.starts.sum() == 1 and (whole.tokens == tokenizer.end_id).sum() == 1
    with pytest.raises(FirthError, match="expected one of sentence, document"):
        read_stream(store, tokenizer, "line")


def test_a_run_says_and_keeps_what_it_measured(run, places):
    workdir, results = run
    entry = read_journal(workdir)[-1]
    assert entry["eval/heldout/lm_perplexity"] == results["heldout/lm_perplexity"]
    assert results["heldout/lm_perplexity"] == pytest.approx(math.exp(results["heldout/lm_loss"]))
    assert entry["train/ngrams_3"] > entry["train/ngrams_2"] > entry["train/ngrams_1"] > 60
    again = evaluate(workdir)
    assert again == results
    assert json.loads((workdir / "evaluation.json").read_text()) == results
    log_probs, store = files.load(workdir)[0], open_store(places / "test")
    stream = read_stream(store, store.tokenizer(), "sentence")
    bits = -log_probs.score(stream.tokens, stream.starts).sum() / math.log(2)
    letters = characters(stream, store.tokenizer())
    assert results["heldout/bits_per_character"] == pytest.approx(bits / letters)


def test_started_again_it_keeps_the_model(run, places):
    workdir, results = run
    before = (workdir / files.TABLES).stat().st_mtime_ns
    held = f"--config.data.heldout_store={places / 'test'}"
    assert train(config(places, held), workdir) == results
    assert (workdir / files.TABLES).stat().st_mtime_ns == before
    with pytest.raises(FirthError, match="holds a run of another config"):
        train(config(places, arg="order=2"), workdir)


def test_a_run_that_died_before_its_model_counts_again(places, tmp_path, monkeypatch):
    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(counted.files.os, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            train(config(places), tmp_path / "w")
    assert not files.is_ngram(tmp_path / "w")
    train(config(places, arg="order=2"), tmp_path / "w")  # another config may take its place
    assert files.load(tmp_path / "w")[0].order == 2


def test_damage_is_named(run, tmp_path):
    workdir, _ = run
    for name in ("model.json", files.TABLES):
        (tmp_path / name).write_bytes((workdir / name).read_bytes())
    data = bytearray((tmp_path / files.TABLES).read_bytes())
    data[-1] ^= 1
    (tmp_path / files.TABLES).write_bytes(data)
    with pytest.raises(FirthError, match=r"ngram\.safetensors is damaged"):
        files.load(tmp_path)
    (tmp_path / "model.json").write_text('{"firth": 1, "model": {"family": "bert"}}')
    with pytest.raises(FirthError, match="does not describe an n-gram model"):
        files.load(tmp_path)


def test_bad_input(places, run, tmp_path):
    with pytest.raises(FirthError, match=r"data\.store is not set"):
        train(recipe.read_recipe("ngram.py"), tmp_path / "w")
    assert not (tmp_path / "w").exists()
    with pytest.raises(FirthError, match="another tokenizer than the model"):
        train(config(places, f"--config.data.heldout_store={places / 'other'}"), tmp_path / "w")
    (tmp_path / "few.txt").write_text("a b\n")
    paths = [f"--input={tmp_path}/few.txt", f"--output={tmp_path}/few", f"--tokenizer={tmp_path}/t"]
    assert cli.main(["prepare", *paths, "--train-tokenizer=word", "--sentences=line"]) == 0
    with pytest.raises(FirthError, match="give no discount"):
        other = recipe.read_recipe("ngram.py:2", [f"--config.data.store={tmp_path}/few"])
        train(other, tmp_path / "w")
    assert not (tmp_path / "w").exists()
    train(config(places), tmp_path / "w")
    with pytest.raises(FirthError, match="has no held-out text"):
        evaluate(tmp_path / "w")
    with pytest.raises(FirthError, match="which has no steps"):
        evaluate(tmp_path / "w", 3)


def test_a_maximum_entropy_model_is_trained_and_kept_as_any_other(places, tmp_path):
    fields = [f"--config.data.store={places / 'train'}"]
    fields += [f"--config.data.heldout_store={places / 'test'}", "--config.model.l2=(0.5,1.0)"]
    given = recipe.read_recipe("maxent.py:order=2", fields)
    results = train(given, tmp_path / "w")
    assert evaluate(tmp_path / "w") == results
    words = len(open_store(places / "train").tokenizer().vocab)
    assert 2 < results["heldout/lm_perplexity"] < words / 2
    model, spec = files.load(tmp_path / "w")
    assert spec["smoothing"]["name"] == "maximum_entropy" and spec["smoothing"]["l2"] == [0.5, 1.0]
    assert np.exp(model.distribution((3,))).sum() == pytest.approx(1, abs=1e-5)
    with pytest.raises(FirthError, match=r"model\.add is no field"):
        train(recipe.with_fields(given, {"model.add": 1.0}), tmp_path / "other")
