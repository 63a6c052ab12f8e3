"""The character-aware language model against torch, its counts against those of the paper."""

import gzip

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.models.model import create, parameter_count
from firth.models.recurrent import char_cnn_lstm
from firth.models.recurrent.char_cnn_lstm import spell, vocabulary
from firth.tokenizers.train_words import word_vocabulary

WORDS = "<unk> <eos> a an vase broke it fell"
V, B, L, D = 8, 2, 3, 6
SMALL = dict(
    family="char_cnn_lstm",
    vocab_size=V,
    words=WORDS,
    hidden_size=D,
    num_layers=2,
    character_size=4,
    filter_widths=3,
    filters_per_width=2,
    most_filters=5,
    highways=2,
    dropout=0.0,
    output_dropout=0.0,
)


def made(**changes):
    """(model, params) of a small network, its parameters random."""
    model = create(SMALL | changes, ("lm",))
    return model, initial(model, jnp.zeros((1, 4), jnp.int32), seed=1, scale=0.5)


def test_words_are_spelt_with_their_ends():
    table, count = spell("<unk> <eos> ab b", 3)
    # Sorted: <eos>, <unk>, a, b
    assert table.tolist() == [[1, 4, 2, 0], [1, 3, 2, 0], [1, 5, 6, 2], [1, 6, 2, 0]]
    assert count == 7
    assert spell("a", 5)[0].tolist() == [[1, 3, 2, 0, 0]]


def torch_words(torch, p, spelt):
    """Vectors of words by torch's convolutions and affine maps."""
    x = torch.nn.functional.embedding(spelt, p["embedding"])
    x = torch.where((spelt == 0)[..., None], 0.0, x).transpose(1, 2)
    found = []
    for i in range(3):
        y = torch.nn.functional.conv1d(x, p[f"filters_{i}_kernel"].permute(2, 1, 0))
        found.append(torch.tanh(y + p[f"filters_{i}_bias"][None, :, None]).max(-1).values)
    x = torch.cat(found, 1)
    for i in range(2):
        carry, new = p[f"highway_{i}_carry"], p[f"highway_{i}_transform"]
        share = torch.sigmoid(x @ carry["kernel"] + carry["bias"])
        x = share * torch.relu(x @ new["kernel"] + new["bias"]) + (1 - share) * x
    return x


@pytest.mark.parametrize("rows", [B, 4])  # fewer tokens than words, and more
def test_it_is_that_of_torch(torch, rows):
    model, params = made()
    assert model.encoder.config.filters == ((1, 2), (2, 4), (3, 5))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, V, (rows, L))
    state = {name: rng.normal(0, 0.5, (rows, 2, D)).astype(np.float32) for name in ("h", "c")}

    def loss(params):
        out = model.apply({"params": params}, tokens, memory=state, method=encode)
        logits = model.apply({"params": params}, out.last, method=lambda m, x: m.lm(x))
        return jax.nn.logsumexp(logits, -1).sum() - logits[..., 0].sum(), (out, logits)

    (_, (out, logits)), grads = jit(jax.value_and_grad(loss, has_aux=True))(params)

    p = jax.tree.map(lambda x: torch.tensor(np.asarray(x), requires_grad=True), params)
    own, table = p["encoder"]["words"], torch.tensor(spell(WORDS, 3)[0])
    words = torch_words(torch, own, table[torch.tensor(tokens)].reshape(rows * L, -1))
    x = words.reshape(rows, L, -1)
    last = []
    for i in range(2):
        layer, outputs = p["encoder"]["stack"][f"layer_{i}"], []
        h, c = (torch.tensor(state[name][:, i]) for name in ("h", "c"))
        cell = torch.nn.LSTMCell(x.shape[-1], D)
        arrays = {
            "weight_ih": layer["input"].flatten(1).T,
            "weight_hh": layer["recurrent"].flatten(1).T,
            "bias_ih": layer["bias"].flatten(),
            "bias_hh": torch.zeros(4 * D),
        }
        for t in range(L):
            h, c = torch.func.functional_call(cell, arrays, (x[:, t], (h, c)))
            outputs.append(h)
        x = torch.stack(outputs, 1)
        last.append((h, c))
    expected = x @ p["lm"]["softmax"] + p["lm"]["bias"]
    (torch.logsumexp(expected, -1).sum() - expected[..., 0].sum()).backward()

    np.testing.assert_allclose(logits, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(out.last, x.detach(), atol=1e-5)
    np.testing.assert_allclose(
        out.hidden[0].reshape(rows * L, -1)[:, :11], words.detach(), atol=1e-5
    )
    for i, (h, c) in enumerate(last):
        np.testing.assert_allclose(out.memory["h"][:, i], h.detach(), atol=1e-5)
        np.testing.assert_allclose(out.memory["c"][:, i], c.detach(), atol=1e-5)
    flat, theirs = jax.tree.leaves_with_path(grads), jax.tree.leaves(p)
    for (path, gradient), leaf in zip(flat, theirs, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad, atol=2e-5, err_msg=str(path))


def encode(model, tokens, memory=None):
    return model.encoder(tokens, None, None, memory=memory)


# 51 characters: table 1, the marks and padding among them. LSTMs of 4 (in + D + 1) D with one bias.
SIZES = {
    "small": (5.3, 51 * 15 + 34_650 + 552_300 + 991_200 + 721_200 + 3_010_000),
    "large": (19.4, 51 * 15 + 77_600 + 4_844_400 + 4_552_600 + 3_382_600 + 6_510_000),
}


@pytest.mark.parametrize("size", SIZES)
def test_parameters_are_those_of_a_hand_count_and_the_paper(size):
    letters = [chr(ord("a") + i) for i in range(46)]  # and two marks of special tokens
    words = ["<unk>", "<eos>", *letters]
    words += [f"{letters[i % 46]}{letters[i // 46 % 46]}{letters[i // 2116]}" for i in range(9952)]
    spec = dict(family="char_cnn_lstm", vocab_size=10_000, words=" ".join(words))
    model = create(spec | char_cnn_lstm.size(size), ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    millions, exactly = SIZES[size]
    assert parameter_count(shapes) == exactly
    assert exactly / 1e6 == pytest.approx(millions, abs=0.1)


def test_the_penn_treebank_has_as_many_characters_as_the_paper_says(shared_data):
    with gzip.open(shared_data("ptb/ptb.train.txt.gz"), "rt", encoding="utf-8") as file:
        words = dict.fromkeys(file.read().split())
    table, count = spell(" ".join(dict.fromkeys(["<unk>", "<eos>", *words])), 6)
    assert len(table) == 10_000
    assert count == 51  # Kim et al., table 1: the marks and padding are among them


def test_parameters_begin_as_in_the_paper():
    model = create(SMALL, ("lm",))
    params = jit(model.init)(jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    for path, leaf in jax.tree.leaves_with_path(params):
        middle = -2.0 if "carry" in str(path) and "bias" in str(path) else 0.0
        largest = np.abs(np.asarray(leaf) - middle).max()
        assert (0.03 if leaf.size > 8 else 0.0) < largest <= 0.05, path
    model, params = made()
    table = params["encoder"]["words"]["embedding"]
    out = jit(lambda p: model.apply({"params": p}, np.array([[2]]), method=encode))(params)
    table = np.where(np.arange(len(table))[:, None] == 0, 9.0, table)  # no character
    params["encoder"]["words"]["embedding"] = table
    again = jit(lambda p: model.apply({"params": p}, np.array([[2]]), method=encode))(params)
    np.testing.assert_array_equal(out.last, again.last)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(vocab_size=9), "model.words has 8 words, but model.vocab_size=9"),
        (dict(filters_per_width=0), "expected at least one filter of each width"),
        (dict(highways=-1), "model.highways=-1: expected"),
        (dict(filter_widths=0), "model.filter_widths=0 should be at least 1"),
        (dict(scan=True), "model.scan=True needs layers of one shape"),
        (dict(output_dropout=1.0), "model.output_dropout=1.0 should lie in"),
    ],
)
def test_what_it_cannot_be(changes, message):
    with pytest.raises(FirthError, match=message):
        create(SMALL | changes)


def test_its_words_are_those_of_a_word_vocabulary():
    tokenizer = word_vocabulary(WORDS.split())
    assert vocabulary(tokenizer) == WORDS
    tokenizer.kind = "char"
    with pytest.raises(FirthError, match="the tokens of this char tokenizer are not words"):
        vocabulary(tokenizer)
