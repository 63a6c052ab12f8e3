"""LSTMs against torch's, and Melis' cell and Elman's network against numpy in double precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth import recipe
from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.models.model import create, parameter_count
from firth.models.recurrent import elman, lstm

WORDS, B, L = 23, 3, 7
SMALL = dict(
    family="lstm",
    vocab_size=WORDS,
    num_layers=2,
    hidden_size=12,
    dropout=0.0,
    embedding_dropout=0.0,
    output_dropout=0.0,
)


def made(**changes):
    """(model, params) of a small network, its parameters random."""
    model = create(SMALL | changes, ("lm",))
    return model, initial(model, jnp.zeros((1, 4), jnp.int32), seed=1, scale=0.4)


def batch(seed=0):
    """(tokens, mask) with padding at the end of two rows, one of them empty."""
    rng = np.random.default_rng(seed)
    mask = np.arange(L) < np.array([[L], [4], [0]])
    return np.where(mask, rng.integers(0, WORDS, (B, L)), 0), mask


def random_state(model, seed=5):
    empty, rng = model.encoder.empty_memory(B), np.random.default_rng(seed)
    return {name: rng.normal(0, 0.5, x.shape).astype(np.float32) for name, x in empty.items()}


def torch_lstm(torch, params, layers):
    """torch.nn.LSTM with these parameters: a row of weights for each gate, in the same order."""
    stack = params["encoder"]["stack"]
    width, hidden = stack["layer_0"]["input"].shape[::2]
    theirs = torch.nn.LSTM(width, hidden, layers, batch_first=True)
    with torch.no_grad():
        for i in range(layers):
            own = stack[f"layer_{i}"]
            for name, kernel in (("ih", own["input"]), ("hh", own["recurrent"])):
                flat = kernel.reshape(len(kernel), -1).T
                getattr(theirs, f"weight_{name}_l{i}").copy_(torch.tensor(flat.copy()))
            getattr(theirs, f"bias_ih_l{i}").copy_(torch.tensor(own["bias"].ravel()))
            getattr(theirs, f"bias_hh_l{i}").zero_()
    return theirs


@pytest.mark.parametrize("embedding", [0, 8])
def test_outputs_state_and_gradients_are_torchs(torch, embedding):
    model, params = made(embedding_size=embedding)
    tokens, _ = batch()
    state = random_state(model)
    coefficients = np.random.default_rng(2).normal(size=(B, L, 12)).astype(np.float32)

    def loss(params, state):
        out = model.apply({"params": params}, tokens, memory=state, method=encode)
        return (out.last * coefficients).sum(), out

    (_, out), grads = jit(jax.value_and_grad(loss, has_aux=True))(params, state)

    theirs = torch_lstm(torch, params, 2)
    table = torch.tensor(params["encoder"]["word"]["embedding"], requires_grad=True)
    initial = tuple(torch.tensor(state[name].swapaxes(0, 1).copy()) for name in ("h", "c"))
    expected, last = theirs(table[torch.tensor(tokens)], initial)
    (expected * torch.tensor(coefficients)).sum().backward()

    np.testing.assert_allclose(out.last, expected.detach(), atol=1e-6)
    for name, array in zip(("h", "c"), last, strict=True):
        np.testing.assert_allclose(out.memory[name].swapaxes(0, 1), array.detach(), atol=1e-6)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    close(grads["encoder"]["word"]["embedding"], table.grad)
    for i in range(2):
        own = grads["encoder"]["stack"][f"layer_{i}"]
        for name, gradient in (("ih", own["input"]), ("hh", own["recurrent"])):
            flat = np.asarray(gradient).reshape(len(gradient), -1).T
            close(flat, getattr(theirs, f"weight_{name}_l{i}").grad)
        close(own["bias"].ravel(), getattr(theirs, f"bias_ih_l{i}").grad)


def encode(model, tokens, mask=None, memory=None, train=False):
    return model.encoder(tokens, None, mask, memory=memory, train=train)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_lstm(params, tokens, mask, state, *, capped=False, sums=False, keep=None):
    """(last hidden states, state after) in double precision, one row and one step at a time."""
    stack = params["encoder"]["stack"]
    outputs, after = [], {name: np.zeros(x.shape) for name, x in state.items()}
    for b, row in enumerate(tokens):
        x = params["encoder"]["word"]["embedding"].astype(np.float64)[row]
        total = 0
        for n in range(len(stack)):
            own = {name: value.astype(np.float64) for name, value in stack[f"layer_{n}"].items()}
            h, c = (state[name][b, n].astype(np.float64) for name in ("h", "c"))
            out = []
            for t in range(len(row)):
                if mask[b, t]:
                    z = np.einsum("d,dgh->gh", x[t], own["input"]) + own["bias"]
                    z += np.einsum(
                        "d,dgh->gh", h * (1 if keep is None else keep[b]), own["recurrent"]
                    )
                    i, f, o = sigmoid(z[0]), sigmoid(z[1]), sigmoid(z[3])
                    c = f * c + (np.minimum(1 - f, i) if capped else i) * np.tanh(z[2])
                    h = o * np.tanh(c)
                out.append(h)
            after["h"][b, n], after["c"][b, n] = h, c
            x, total = np.array(out), total + np.array(out)
        outputs.append(total if sums else x)
    return np.array(outputs), after


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("options", [{}, dict(capped_input_gate=True, sums_layers=True)])
def test_the_cell_of_melis_and_padding(options, scan):
    model, params = made(**options)
    tokens, mask = batch()
    state = random_state(model)
    own = create(SMALL | options | dict(scan=scan), ("lm",))
    stacked = params
    if scan:
        layers = [params["encoder"]["stack"][f"layer_{i}"] for i in range(2)]
        stack = {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers)}
        stacked = params | {"encoder": params["encoder"] | {"stack": stack}}
    out = jit(functools.partial(own.apply, method=encode))(
        {"params": stacked}, tokens, mask, memory=state
    )
    capped, sums = (bool(options),) * 2
    expected, after = numpy_lstm(params, tokens, mask, state, capped=capped, sums=sums)
    np.testing.assert_allclose(np.asarray(out.last)[mask], expected[mask], atol=1e-6)
    np.testing.assert_array_equal(out.last, out.hidden[-1])
    for name in ("h", "c"):
        np.testing.assert_allclose(out.memory[name], after[name], atol=1e-6)
        np.testing.assert_array_equal(np.asarray(out.memory[name])[2], state[name][2])


def test_elmans_network_is_that_of_the_paper():
    model = create(dict(family="rnn", vocab_size=WORDS, hidden_size=9, init_stddev=0.5), ("lm",))
    params = initial(model, jnp.zeros((1, 4), jnp.int32), scale=0.5)
    tokens, _ = batch()
    out, logits = jit(model.apply)({"params": params}, tokens)
    table, own = (
        np.asarray(x, np.float64)
        for x in (
            params["encoder"]["word"]["embedding"],
            params["encoder"]["stack"]["layer_0"]["recurrent"][:, 0],
        )
    )
    words = np.asarray(params["lm"]["softmax"], np.float64)
    s = np.zeros((B, 9))
    for t in range(L):
        s = sigmoid(table[tokens[:, t]] + s @ own)
        np.testing.assert_allclose(out.last[:, t], s, atol=1e-6)
        np.testing.assert_allclose(logits["lm"][:, t], s @ words, atol=1e-5)
    assert parameter_count(params) == 2 * WORDS * 9 + 9 * 9


def test_dropout_of_the_state_is_one_mask_for_all_places(monkeypatch):
    model, params = made(num_layers=1, state_dropout=0.5)
    tokens, mask = batch()
    state = random_state(model)
    keep = np.random.default_rng(4).integers(0, 2, (B, 12)).astype(bool)
    shapes = []
    monkeypatch.setattr(Dropout, "mask", lambda self, shape: shapes.append(shape) or keep)
    apply = functools.partial(model.apply, {"params": params}, tokens, mask, memory=state)
    out = apply(train=True, method=encode)
    expected, after = numpy_lstm(params, tokens, mask, state, keep=2.0 * keep)
    assert shapes == [(B, 12)]
    np.testing.assert_allclose(np.asarray(out.last)[mask], expected[mask], atol=1e-6)
    np.testing.assert_allclose(out.memory["h"], after["h"], atol=1e-6)
    expected, _ = numpy_lstm(params, tokens, mask, state)
    measured = apply(method=encode)
    np.testing.assert_allclose(np.asarray(measured.last)[mask], expected[mask], atol=1e-6)


def test_dropout_falls_on_vertical_edges_alone(monkeypatch):
    """The embeddings, between the layers and the output, each place with a mask of its own."""
    rates = dict(embedding_dropout=0.1, dropout=0.2, output_dropout=0.3)
    model, params = made(**rates)
    tokens, _ = batch()
    seen = []

    def mask(self, shape, rows=True):
        seen.append((self.rate, shape))
        return np.ones(shape, bool)

    monkeypatch.setattr(Dropout, "mask", mask)
    out = model.apply({"params": params}, tokens, train=True, method=encode)
    # what the last layer would hand on is dropped as well, and not read
    assert seen == [(rate, (B, L, 12)) for rate in (0.1, 0.2, 0.2, 0.3)]
    scaled = [1 / (1 - round(rate * 65536) / 65536) for rate in rates.values()]
    own = {name: value.copy() for name, value in params["encoder"]["stack"]["layer_0"].items()}
    own["input"] *= scaled[0]
    above = dict(params["encoder"]["stack"]["layer_1"])
    above["input"] = above["input"] * scaled[1]
    encoder = params["encoder"] | {"stack": dict(layer_0=own, layer_1=above)}
    expected, _ = numpy_lstm({"encoder": encoder}, tokens, np.ones((B, L), bool), zeros(model))
    np.testing.assert_allclose(out.hidden[-1], expected, atol=1e-6)
    np.testing.assert_allclose(out.last, expected * scaled[2], atol=1e-6)


def zeros(model):
    return {name: np.asarray(x) for name, x in model.encoder.empty_memory(B).items()}


@pytest.mark.parametrize(
    ("name", "count"), [("small", 4_651_600), ("medium", 19_775_200), ("large", 66_022_000)]
)
def test_parameter_counts_are_the_papers(name, count):
    """With one bias for a layer, as the TensorFlow code has; the Lua code has two."""
    model = create(dict(family="lstm", vocab_size=10_000) | lstm.size(name), ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    assert parameter_count(shapes["params"]) == count


@pytest.mark.parametrize(
    ("size", "words", "count"),
    [
        ("10m_d1", 10_001, 9_997_549),
        ("24m_d4", 10_001, 23_979_620),
        ("24m_d2", 33_279, 23_982_129),
    ],
)
def test_the_networks_of_melis_are_within_their_budgets(size, words, count):
    """By hand: embeddings, layers with one bias each, the map down, the bias of the softmax."""
    spec = dict(recipe.read_recipe(f"melis.py:{size}").model) | dict(vocab_size=words)
    model = create(spec, ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    N, D, E = spec["num_layers"], spec["hidden_size"], spec["embedding_size"]
    layers = sum(4 * D * ((D if n else E) + D + 1) for n in range(N))
    down = D * E if D != E else 0
    assert parameter_count(shapes["params"]) == words * (E + 1) + layers + down == count
    assert count <= int(size[:2]) * 1_000_000


def test_a_narrow_embedding_ends_in_its_own_table():
    """Melis et al.: down to the width of the embeddings, which the softmax shares."""
    model, params = made(embedding_size=8, tied_softmax=True, num_layers=1)
    tokens, _ = batch()
    out, logits = jit(model.apply)({"params": params}, tokens)
    encoder = params["encoder"]
    assert out.hidden.shape == (2, B, L, 12) and "softmax" not in params["lm"]
    np.testing.assert_array_equal(out.hidden[0][..., :8], encoder["word"]["embedding"][tokens])
    assert not np.asarray(out.hidden[0][..., 8:]).any()
    narrow = np.asarray(out.last) @ encoder["project"]["kernel"]
    expected = narrow @ encoder["word"]["embedding"].T + params["lm"]["bias"]
    np.testing.assert_allclose(logits["lm"], expected, atol=1e-5)


def test_every_parameter_begins_uniform_and_the_forget_gate_where_it_is_told():
    own = dict(hidden_size=200, vocab_size=300, init_range=0.1, forget_bias=1.0)
    tokens = jnp.zeros((1, 4), jnp.int32)
    params = jit(create(SMALL | own, ("lm",)).init)(jax.random.key(1), tokens)["params"]
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if leaf.ndim == 2 and leaf.shape == (4, 200):
            assert 0.95 < leaf[1].mean() < 1.05
            leaf = leaf - np.array([[0], [1], [0], [0]])
        assert 0.09 < abs(leaf).max() <= 0.1 + 1e-6, path
        assert abs(leaf.std() - 0.1 / 3**0.5) < 0.01


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dict(embedding_size=13), "embedding_size=13: expected at most model.hidden_size=12"),
        (dict(embedding_size=8, scan=True), "needs layers of one shape"),
        (dict(remat="full"), "remat='full': a recurrent layer keeps"),
        (dict(dtype="int8"), "dtype='int8' is unknown"),
        (dict(state_dropout=1.0), r"state_dropout=1.0 should lie in \[0, 1\)"),
        (dict(hidden_size=0), "hidden_size=0 should be at least 1"),
    ],
)
def test_what_cannot_be(spec, message):
    with pytest.raises(FirthError, match=message):
        create(SMALL | spec)


def test_elmans_network_has_one_layer_and_no_attentions():
    with pytest.raises(FirthError, match="num_layers=2: Elman's network has 1 layer"):
        create(dict(family="rnn", num_layers=2))
    assert elman.size("small") == {"hidden_size": 200}
    model, params = made()
    with pytest.raises(FirthError, match="a recurrent network has no attentions"):
        model.apply({"params": params}, batch()[0], attentions=True)
