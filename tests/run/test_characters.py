"""Language models of characters: line ends, bits a character, texts that look right."""

import json
import math

import jax
import numpy as np
import pytest

import firth
from firth import cli, recipe
from firth.data.corpus.store import open_store
from firth.data.corpus.stream import characters, read_stream
from firth.run.evaluator import evaluate
from firth.train import train

VERSE = "First Citizen:\nBefore we proceed,\n\nhear me  speak.\n\n\nAll:\nSpeak, Speak.\n"


def prepare(folder, name, text, *options):
    (folder / f"{name}.txt").write_text(text)
    paths = ["--input", str(folder / f"{name}.txt"), "--output", str(folder / name)]
    options += ("--sentences=newline", "--document=file", "--workers=1")
    assert cli.main(["prepare", *paths, "--tokenizer", str(folder / "tok"), *options]) == 0


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The folder of a text, of a held-out one and of their tokenizer."""
    folder = tmp_path_factory.mktemp("characters")
    prepare(folder, "train", VERSE * 8, "--train-tokenizer=char")
    prepare(folder, "valid", VERSE + "Hear, z\n")
    return folder


@pytest.fixture(scope="module")
def lstm(places):
    """The workdir of a character LSTM after a few steps."""
    fields = [f"--config.data.store={places / 'train'}", "--config.steps=120"]
    fields += [f"--config.data.heldout_store={places / 'valid'}", "--config.eval.every=60"]
    fields += ["--config.batch_size=8", "--config.eval.batch_size=8", "--config.curves=False"]
    fields += ["--config.schedule.lr=0.02"]
    train(recipe.read_recipe("char_lstm.py:tiny,length=8", fields), places / "lstm")
    return places / "lstm"


@pytest.fixture(scope="module")
def ngram(places):
    """The workdir of a character 3-gram."""
    fields = [f"--config.data.store={places / 'train'}", "--config.data.ends=none"]
    fields += ["--config.model.discount_fallback=(0.5,1.0,1.5)"]
    train(recipe.read_recipe("ngram.py:order=3", fields), places / "kn3")
    return places / "kn3"


def test_a_store_of_characters_is_the_text(places):
    store = open_store(places / "train")
    tokenizer = store.tokenizer()
    assert tokenizer.decode(np.asarray(store.tokens), skip_special=False) == VERSE * 8
    assert set(tokenizer.vocab) == {"<unk>", "<eos>", *VERSE}
    assert tokenizer.line_end_id == tokenizer.id("\n") != tokenizer.end_id
    held = open_store(places / "valid")
    stream = read_stream(held, tokenizer, "none")
    assert np.array_equal(stream.tokens, held.tokens) and np.flatnonzero(stream.starts) == [0]
    assert characters(stream, tokenizer) == len(stream) == len(VERSE + "Hear, z\n")
    assert (stream.tokens == tokenizer.unk_id).sum() == 1  # z, which is one character


def test_other_vocabularies_write_line_ends_as_the_end_token(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n\nb\n")
    arguments = ["--input", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path / "tok")]
    arguments += ["--output", str(tmp_path / "store"), "--train-tokenizer=word", "--workers=1"]
    assert cli.main(["prepare", *arguments, "--sentences=newline", "--document=file"]) == 0
    store = open_store(tmp_path / "store")
    tokenizer = store.tokenizer()
    assert tokenizer.line_end_id == tokenizer.end_id and "\n" not in tokenizer.vocab
    assert tokenizer.decode(store.tokens, skip_special=False) == "a b <eos> <eos> b <eos>"


def test_documents_are_starts_where_no_ends_are_added(tmp_path):
    (tmp_path / "a.txt").write_text("a b\n\nb c a\nb\n")
    arguments = ["--input", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path / "tok")]
    arguments += ["--output", str(tmp_path / "store"), "--train-tokenizer=word", "--workers=1"]
    assert cli.main(["prepare", *arguments, "--sentences=line"]) == 0
    store = open_store(tmp_path / "store")
    stream = read_stream(store, store.tokenizer(), "none")
    assert stream.tokens.tolist() == store.tokens.tolist()
    assert np.flatnonzero(stream.starts).tolist() == [0, 2]


def test_bits_are_those_of_every_character_but_the_first(places, lstm):
    results = evaluate(lstm, None, ["--config.eval.batch_size=1", "--config.eval.batches=100000"])
    encoder = firth.load(lstm)
    tokens = np.asarray(open_store(places / "valid").tokens, np.int32)[None]
    bound = encoder.model.bind({"params": encoder.params})
    logits = bound.lm(bound.encoder(tokens[:, :-1], None, None, train=False).last)
    log_probs = np.asarray(jax.nn.log_softmax(logits[0]), np.float64)
    bits = -log_probs[np.arange(tokens.size - 1), tokens[0, 1:]].mean() / math.log(2)
    assert results["heldout/bits_per_character"] == pytest.approx(bits, rel=1e-5)


def test_bits_of_words_are_not_called_those_of_characters(tmp_path):
    (tmp_path / "a.txt").write_text("a b c\nb c a\n" * 20)
    arguments = ["--input", str(tmp_path / "a.txt"), "--tokenizer", str(tmp_path / "tok")]
    arguments += ["--output", str(tmp_path / "store"), "--train-tokenizer=word", "--workers=1"]
    assert cli.main(["prepare", *arguments, "--sentences=line"]) == 0
    fields = [f"--config.data.{name}={tmp_path / 'store'}" for name in ("store", "heldout_store")]
    fields += ["--config.steps=1", "--config.batch_size=8", "--config.eval.batch_size=8"]
    fields += ["--config.curves=False"]
    results = train(recipe.read_recipe("lstm.py:tiny,length=4", fields), tmp_path / "run")
    assert "heldout/lm_loss" in results and "heldout/bits_per_character" not in results


def test_a_3_gram_of_characters_reads_over_line_ends(places, ngram):
    results = evaluate(ngram, None, [f"--config.data.heldout_store={places / 'valid'}"])
    assert results["heldout/tokens"] == len(VERSE + "Hear, z\n")
    bits = results["heldout/lm_loss"] / math.log(2)
    assert results["heldout/bits_per_character"] == pytest.approx(bits)
    assert bits < 2  # the text is that of training but for its last line


def test_models_of_characters_are_compared(places, lstm, ngram, capsys):
    arguments = ["--models", f"{ngram},{lstm}", "--data", str(places / "valid")]
    assert cli.main(["evaluate", *arguments, "--ends=none", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["measures"]["tokens"] for row in rows} == {len(VERSE + "Hear, z\n")}


@pytest.mark.parametrize("model", ["lstm", "ngram"])
def test_what_is_generated_looks_like_the_text(model, request, capsys):
    where = str(request.getfixturevalue(model))
    arguments = ["generate", "--model", where, "--tokens=60", "--temperature=0.8"]
    assert cli.main([*arguments, "--prompt", "All:\nSpe"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("All:\nSpe") and len(text.removesuffix("\n")) > 40
    assert "S p" not in text
    if model == "ngram":
        assert "\n" in text[8:-1] and "Speak" in text
    assert cli.main(arguments) == 0  # without a prompt a line begins
    text = capsys.readouterr().out
    assert "<eos>" not in text and len(text) > 40
    assert cli.main([*arguments, "--prompt", "\n"]) == 0
    assert capsys.readouterr().out.strip() == text.strip()
