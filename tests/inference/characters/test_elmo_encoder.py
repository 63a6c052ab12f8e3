"""`firth.load` on ELMo: the released code's vectors, words read once, mixes of layers."""

import json

import numpy as np
import pytest
from helpers.elmo import write_released

import firth
from firth.errors import FirthError
from firth.inference.characters import elmo
from firth.tokenizers.spelling import spell

h5py = pytest.importorskip("h5py")
TEXTS = ["the cat sat on the mat", "naïve", ("the end", "of it all"), "", "a  the\tcat " + "x" * 70]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small ELMo in the released layout."""
    return write_released(tmp_path_factory.mktemp("elmo"))


@pytest.fixture(scope="module")
def encoder(folder):
    return firth.load(folder)


def test_vectors_are_those_of_the_released_code(shared_data):
    """Ten batches of three texts, each going on in the states of the one before."""
    data = shared_data("elmo_fixture/model")
    sentences = json.loads((data / "lm_embeddings_sentences.json").read_text())
    encoder = firth.load(data)
    for k, vectors in enumerate(encoder.in_turn(zip(*sentences, strict=True))):
        for row, found in enumerate(vectors):
            with h5py.File(data / f"lm_embeddings_{row}.hdf5") as file:
                ahead, behind = file[str(k)][...]
            expected = np.concatenate([ahead, behind], -1)
            np.testing.assert_allclose(found[2], expected, rtol=0, atol=1e-5)
            assert (found[0, :, :16] == found[0, :, 16:]).all()
    fresh = encoder([sentences[0][9]]).hidden[2, 0]
    assert np.abs(fresh - vectors[0][2]).max() > 1e-2  # what came before matters


def test_words_read_once_have_the_same_vectors(encoder, folder):
    own = encoder(TEXTS, batch_size=2)
    assert own.tokens[2] == ["the", "end", "of", "it", "all"] and own.tokens[3] == []
    assert own.hidden.shape == (3, 5, 6, 10)
    other = firth.load(folder)
    other.remembers = False
    plain = other(TEXTS, batch_size=2)
    mask = own.mask
    np.testing.assert_allclose(own.hidden[:, mask], plain.hidden[:, mask], rtol=1e-5, atol=1e-6)
    ids = np.zeros((2, 6, 50), np.int32)
    ids[0], ids[1, :4] = spell(TEXTS[0].split())[0], spell(TEXTS[4].split())[0]
    given = other(tokens=ids, mask=np.arange(6) < [[6], [4]])
    assert given.tokens[0] == TEXTS[0].split()
    assert given.tokens[1] == ["a", "the", "cat", "x" * 48]  # what has a place
    np.testing.assert_allclose(given.hidden[:, 0], own.hidden[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(given.hidden[:, 1, :4], own.hidden[:, 4, :4], rtol=1e-5, atol=1e-6)


def test_a_full_memory_of_words_is_emptied(folder, encoder, monkeypatch):
    monkeypatch.setattr(elmo, "MOST", 4)
    other = firth.load(folder)
    for text in TEXTS[:2] + TEXTS[4:] + TEXTS[:1]:
        np.testing.assert_allclose(
            other([text]).hidden, encoder([text]).hidden, rtol=1e-5, atol=1e-6
        )


def test_each_word_is_read_once(folder, monkeypatch):
    other, read = firth.load(folder), []
    keep = other._keep
    monkeypatch.setattr(other, "_keep", lambda new: read.extend(new.tolist()) or keep(new))
    for _ in range(2):
        other(TEXTS)
    words = {word for text in TEXTS for word in " ".join(np.atleast_1d(text)).split()}
    assert len(read) == len(set(read)) == len(words) + 1  # and padding


def test_states_go_on_row_by_row(encoder):
    first, second = encoder.in_turn([["the cat"], ["sat", "on it"]])
    alone = encoder(["on it"]).hidden[:, 0]
    np.testing.assert_allclose(second[1], alone, rtol=1e-5, atol=1e-6)
    assert np.abs(second[0] - encoder(["sat"]).hidden[:, 0])[1:].max() > 1e-3
    np.testing.assert_allclose(first[0], encoder(["the cat"]).hidden[:, 0], rtol=1e-5, atol=1e-6)


def test_represent_writes_words_layers_and_mixes(printed, folder, encoder, tmp_path):
    (tmp_path / "in.txt").write_text("the cat sat\nmat\n")
    common = ("represent", "--model", folder, "--input", tmp_path / "in.txt", "--output")
    hidden = encoder(["the cat sat", "mat"]).hidden

    printed(*common, tmp_path / "w.npz", "--pool=none", "--layers=0,1,2")
    with np.load(tmp_path / "w.npz") as file:
        assert file["tokens"].tolist() == ["the", "cat", "sat", "mat"]
        assert file["offsets"].tolist() == [0, 3, 4]
        rows = np.concatenate([hidden[:, 0], hidden[:, 1, :1]], 1).swapaxes(0, 1)
        np.testing.assert_allclose(file["hidden"], rows, rtol=1e-5, atol=1e-6)

    printed(*common, tmp_path / "m.npz", "--mix=0,1.5,-1", "--gamma=2")
    weights = np.exp([0, 1.5, -1])
    shares = 2 * weights / weights.sum()
    mean = np.stack([hidden[:, 0].mean(1), hidden[:, 1, 0]])
    with np.load(tmp_path / "m.npz") as file:
        np.testing.assert_allclose(file["shares"], shares, rtol=1e-6)
        mixed = np.einsum("bnd,n->bd", mean, shares)
        np.testing.assert_allclose(file["vectors"], mixed, rtol=1e-5, atol=1e-6)

    said = printed(*common, tmp_path / "u.npy", "--mix")
    assert "a mix of layers [0, 1, 2]" in said
    np.testing.assert_allclose(np.load(tmp_path / "u.npy"), mean.mean(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "tokens, mask, message",
    [
        (np.full((1, 2, 50), 262), None, "character ids range from 262 to 262, outside 0 .. 261"),
        (np.full((1, 2, 50), -1), None, "from -1 to -1"),
        (np.zeros((1, 2), int), None, r"tokens are int64 \[1, 2\]; expected character ids"),
        (np.ones((1, 2, 50), int), [[0, 1]], "words of a row before its padding"),
    ],
)
def test_character_ids_must_fit(encoder, tokens, mask, message):
    with pytest.raises(FirthError, match=message):
        encoder(tokens=tokens, mask=mask)


def test_a_mix_has_a_weight_a_layer(folder, tmp_path):
    (tmp_path / "in.txt").write_text("the\n")
    from firth.commands.represent import main

    with pytest.raises(FirthError, match="mix has 2 weights for 3 layers"):
        files = "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "v.npy")
        main(["--model", str(folder), *files, "--mix=1,2"])
    assert not (tmp_path / "v.npy").exists()
