"""Weights for other words: known rows stay, new ones are the mean row."""

import dataclasses

import numpy as np
import pytest

from firth.cli import main
from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer
from firth.weights.read import Saved
from firth.weights.transfer.vocabulary import transfer_vocabulary

D = 3


def tokenizer_of(folder, text, kind="word"):
    """A tokenizer of the words of a text."""
    (folder / "text.txt").write_text(f"{text}\n")
    line = f"prepare --input {folder}/text.txt --train-tokenizer {kind} --tokenizer {folder}/tok"
    assert main([*line.split(), "--sentences=line", f"--output={folder}/store"]) == 0
    return folder / "tok"


@pytest.fixture
def pair(tmp_path):
    """(weights of a vocabulary, the tokenizer of another one that shares words with it)."""
    paths = []
    for name, text in (("old", "the cat sat on the mat"), ("new", "a dog sat on a cat")):
        (tmp_path / name).mkdir()
        paths.append(tokenizer_of(tmp_path / name, text))
    old = load_tokenizer(paths[0])
    rng = np.random.default_rng(0)
    V = old.vocab_size + 2  # a table may be larger than the vocabulary
    table, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((V, D), (D, V)))
    biases = {"bias": rng.normal(size=V).astype(np.float32), "softmax": kernel}
    params = {"encoder": {"word": {"embedding": table}, "type": {"embedding": table}}, "lm": biases}
    spec = dict(family="lstm", vocab_size=V, num_layers=1)
    saved = Saved(spec, ("lm",), 2, None, False, params, tmp_path, "firth", tokenizer_path=paths[0])
    return saved, load_tokenizer(paths[1])


def test_known_words_keep_their_rows_and_new_ones_get_the_mean(pair, caplog):
    saved, new = pair
    old = saved.tokenizer()
    with caplog.at_level("INFO", "firth"):
        moved = transfer_vocabulary(saved, new)
    assert moved.spec == saved.spec | {"vocab_size": new.vocab_size}
    table, softmax, bias = (
        (
            saved.params["encoder"]["word"]["embedding"],
            moved.params["encoder"]["word"]["embedding"],
        ),
        (saved.params["lm"]["softmax"].T, moved.params["lm"]["softmax"].T),
        (saved.params["lm"]["bias"], moved.params["lm"]["bias"]),
    )
    known = 0
    for before, after in (table, softmax, bias):
        assert len(after) == new.vocab_size and after.dtype == np.float32
        for word, row in zip(new.vocab, after, strict=True):
            if (number := old.id(word)) is not None:
                np.testing.assert_array_equal(row, before[number])
                known += 1
            else:
                mean = before[: old.vocab_size].astype(np.float64).mean(0)
                np.testing.assert_allclose(row, mean, rtol=1e-6)
    assert {"cat", "sat", "on"} < set(new.vocab) & set(old.vocab)
    assert not {"dog", "a"} & set(old.vocab)
    assert f"{known // 3} of {new.vocab_size} words are in {saved.source} too" in caplog.text
    # What is no vocabulary stays, whatever its size.
    types = [m.params["encoder"]["type"]["embedding"] for m in (saved, moved)]
    assert types[0] is types[1]


def test_special_tokens_of_other_names_go_by_their_role(pair, tmp_path):
    saved, _ = pair
    (tmp_path / "pieces").mkdir()
    new = load_tokenizer(tokenizer_of(tmp_path / "pieces", "cat sat on the mat", "wordpiece"))
    old = saved.tokenizer()
    assert old.id("[UNK]") is None and old.unk_id is not None
    moved = transfer_vocabulary(saved, new).params["lm"]["bias"]
    assert moved[new.unk_id] == saved.params["lm"]["bias"][old.unk_id]


def test_what_has_no_words_to_move_is_refused(pair, tmp_path):
    saved, new = pair
    with pytest.raises(FirthError, match="holds no tokenizer, so its words are not known"):
        transfer_vocabulary(dataclasses.replace(saved, tokenizer_path=None), new)
    classes = saved.spec | {"class_sizes": (3, 4)}
    with pytest.raises(FirthError, match="divides its words into classes by frequency"):
        transfer_vocabulary(dataclasses.replace(saved, spec=classes), new)
    spelt = saved.spec | {"words": "a b c"}
    with pytest.raises(FirthError, match="spells the words of its own vocabulary"):
        transfer_vocabulary(dataclasses.replace(saved, spec=spelt), new)
