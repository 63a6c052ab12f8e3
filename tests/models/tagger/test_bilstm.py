"""The bidirectional tagger against PyTorch's LSTM, and what padding must not do."""

import dataclasses

import jax
import numpy as np
import pytest

from firth.data.tagging.rows import BEGIN, BYTES, END, character_ids
from firth.errors import FirthError
from firth.models.model import create
from firth.models.tagger.bilstm import Config

SPEC = dict(
    family="tagger", vocab_size=11, embedding_size=5, character_size=4, filters=3, word_length=8,
    num_layers=2, hidden_size=6, feature_size=2, dropout=0.0,
)  # fmt: skip
SIZES = (5, 3, 1)
MASK = np.arange(5) < np.array(SIZES)[:, None]


@pytest.fixture(scope="module")
def made():
    model = create(SPEC, ("tags",), num_labels=4)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    params = jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(x.dtype), shapes)
    words = [["a", "bb", "", "long words", "é"], ["x", "yy", "zzz"], ["w"]]
    characters = np.zeros((3, 5, 8), np.uint16)
    for row, sentence in enumerate(words):
        characters[row, : len(sentence)] = character_ids(sentence, 8)
    tokens = np.where(MASK, rng.integers(0, 11, MASK.shape), 1)
    features = rng.normal(size=(*MASK.shape, 2)).astype(np.float32)
    return model, params, tokens, characters, features


def apply(made, tokens, mask, characters, features):
    model, params = made[:2]

    def run(params, *arrays):
        tokens, mask, characters, features = arrays
        out = model.bind({"params": params}).encoder(
            tokens, None, mask, characters=characters, features=features
        )
        return out.last, out.hidden

    return [np.asarray(x) for x in jax.jit(run)(params, tokens, mask, characters, features)]


def test_every_layer_is_that_of_pytorch(made, torch):
    """Each sentence by itself, without padding, through torch.nn.LSTM in both directions."""
    _, params, tokens, characters, features = made
    _, hidden = apply(made, tokens, MASK, characters, features)
    encoder = params["encoder"]
    lstm = torch.nn.LSTM(5 + 3 + 2, 6, num_layers=2, bidirectional=True, batch_first=True)
    for i in range(2):
        for ours, theirs in (("forward", ""), ("backward", "_reverse")):
            own = encoder["stack"][f"{ours}_{i}"]  # [D, gates, H] as torch's [gates H, D]
            for name, kernel in (("ih", "input"), ("hh", "recurrent")):
                flat = own[kernel].reshape(len(own[kernel]), -1).T.copy()
                getattr(lstm, f"weight_{name}_l{i}{theirs}").data = torch.tensor(flat)
            getattr(lstm, f"bias_ih_l{i}{theirs}").data = torch.tensor(own["bias"].reshape(-1))
            getattr(lstm, f"bias_hh_l{i}{theirs}").data.zero_()
    filters = encoder["characters"]
    kernel = filters["dense"]["kernel"].reshape(3, 4, 3)
    for row, size in enumerate(SIZES):
        responses = []
        for ids in characters[row, :size].astype(int):
            letters = filters["character"]["embedding"][ids[ids > 0]]
            windows = [letters[i : i + 3] for i in range(len(letters) - 2)]
            found = [np.einsum("wc,wcf->f", w, kernel) + filters["dense"]["bias"] for w in windows]
            responses.append(np.maximum(np.max(found, axis=0), 0) if found else np.zeros(3))
        vectors = np.concatenate(
            [encoder["word"]["embedding"][tokens[row, :size]], responses, features[row, :size]], 1
        )
        with torch.no_grad():
            expected = lstm(torch.tensor(vectors[None], dtype=torch.float32))[0][0].numpy()
        np.testing.assert_allclose(hidden[-1, row, :size], expected, atol=2e-6)


def test_padding_changes_nothing(made):
    """Neither what stands there nor how much of it."""
    _, _, tokens, characters, features = made
    last, hidden = apply(made, tokens, MASK, characters, features)
    assert hidden.shape == (2, 3, 5, 12)
    other = [np.where(MASK[..., None], x, 1).astype(x.dtype) for x in (characters, features)]
    wide = [np.pad(x, ((0, 0), (0, 3)) + ((0, 0),) * (x.ndim - 2)) for x in
            (np.where(MASK, tokens, 7), MASK, *other)]  # fmt: skip
    found, _ = apply(made, *wide)
    np.testing.assert_allclose(found[:, :5][MASK], last[MASK], atol=1e-6)


def test_words_are_read_in_both_directions(made):
    """A change of the last word reaches the first one, and the other way round."""
    _, _, tokens, characters, features = made
    last, _ = apply(made, tokens, MASK, characters, features)
    for place in (0, 4):
        changed = tokens.copy()
        changed[0, place] = (changed[0, place] + 1) % 11
        found, _ = apply(made, changed, MASK, characters, features)
        assert (np.abs(found[0] - last[0]).max(1) > 1e-6).all()
        np.testing.assert_array_equal(found[1:], last[1:])


def test_characters_of_words():
    (row, long, empty) = character_ids(["aé", "abcdefgh", ""], 7)
    assert row.tolist() == [BEGIN, 97 + BYTES, 0xC3 + BYTES, 0xA9 + BYTES, END, 0, 0]
    assert long.tolist() == [BEGIN, *(ord(c) + BYTES for c in "abcdh"), END]
    assert empty.tolist() == [BEGIN, END, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("field", "value", "pattern"),
    [
        ("hidden_size", 0, "hidden_size=0 should be at least 1"),
        ("filters", -1, "filters=-1 should be at least 0"),
        ("word_length", 5, "word_length=5: expected at least"),
        ("cell", "gru", "cell='gru': expected lstm or elman"),
        ("remat", "full", "remat='full'"),
        ("dtype", "int8", "dtype='int8'"),
    ],
)
def test_a_config_that_cannot_be(field, value, pattern):
    with pytest.raises(FirthError, match=pattern):
        dataclasses.replace(Config(), **{field: value})
    with pytest.raises(FirthError, match="a word needs one of them"):
        Config(embedding_size=0, filters=0)


def test_texts_are_refused(made):
    model, params = made[:2]
    with pytest.raises(FirthError, match="reads words with their characters"):
        jax.eval_shape(lambda p: model.apply({"params": p}, np.zeros((1, 4), np.int32)), params)
