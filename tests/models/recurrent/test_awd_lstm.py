"""AWD-LSTM against torch's LSTMs, with the masks of every dropout and both penalties."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.models.model import bound, create, parameter_count
from firth.models.recurrent import awd_lstm
from firth.objectives.clm import CausalLM

WORDS, B, L, D, E = 19, 3, 6, 10, 8
RATES = dict(
    word_dropout=0.1,
    embedding_dropout=0.2,
    weight_dropout=0.5,
    dropout=0.3,
    output_dropout=0.4,
)
SMALL = dict(family="awd_lstm", vocab_size=WORDS, hidden_size=D, embedding_size=E)


@functools.cache
def made():
    model = create(SMALL | RATES, ("lm",))
    return model, initial(model, jnp.zeros((1, 4), jnp.int32), seed=1, scale=0.4)


def batch():
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, WORDS, (2, B, L))
    mask = np.ones((B, L), bool)
    return dict(
        tokens=tokens,
        segments=np.zeros_like(tokens),
        mask=mask,
        targets=targets,
        target_weights=mask.astype(np.float32),
        carry=random_state(),
    )


def random_state():
    rng, widths = np.random.default_rng(5), (D, D, E)
    names = [(f"{name}_{i}", width) for i, width in enumerate(widths) for name in "hc"]
    return {name: rng.normal(0, 0.5, (B, width)).astype(np.float32) for name, width in names}


class Torch:
    """`model.py` of awd-lstm-lm: LSTMs of their own widths, masks as given, tied words."""

    def __init__(self, torch, params):
        self.torch, encoder = torch, params["encoder"]
        self.table = torch.tensor(encoder["word"]["embedding"], requires_grad=True)
        self.bias = torch.tensor(params["lm"]["bias"], requires_grad=True)
        self.layers = []
        for i in range(3):
            own = encoder["stack"][f"layer_{i}"]
            self.layers.append(
                [torch.tensor(own[name], requires_grad=True) for name in ("input", "recurrent")]
                + [torch.tensor(own["bias"], requires_grad=True)]
            )

    def __call__(self, tokens, state, masks):
        """(dropped output, output of the last layer, state); masks are scaled, 1 for none."""
        torch = self.torch
        x = (self.table * masks["words"])[torch.tensor(tokens)] * masks["embedding"]
        after = {}
        for i, (kernel, recurrent, bias) in enumerate(self.layers):
            width = recurrent.shape[0]
            cell = torch.nn.LSTM(x.shape[-1], width, batch_first=True)
            weights = dict(
                weight_ih_l0=kernel.reshape(kernel.shape[0], -1).T,
                weight_hh_l0=(recurrent * masks[f"weights_{i}"]).reshape(width, -1).T,
                bias_ih_l0=bias.reshape(-1),
                bias_hh_l0=torch.zeros(4 * width),
            )
            given = tuple(torch.tensor(state[f"{name}_{i}"])[None] for name in "hc")
            out, last = torch.func.functional_call(cell, weights, (x, given))
            after |= {f"{name}_{i}": y[0] for name, y in zip("hc", last, strict=True)}
            x = out * masks[f"between_{i}"] if i < 2 else out
        return x * masks["output"], x, after


def test_outputs_and_state_are_torchs(torch):
    model, params = made()
    rows = batch()
    out = jit(bound(model, lambda m, *x: m.encoder(*x[:3], memory=x[3])))(
        params, rows["tokens"], None, None, rows["carry"]
    )
    theirs = Torch(torch, params)
    none = {name: 1.0 for i in range(3) for name in (f"weights_{i}", f"between_{i}")}
    none |= dict(words=1.0, embedding=1.0, output=1.0)
    last, _, after = theirs(rows["tokens"], rows["carry"], none)
    np.testing.assert_allclose(out.last, last.detach(), atol=1e-6)
    for name, array in after.items():
        np.testing.assert_allclose(out.memory[name], array.detach(), atol=1e-6)
    assert out.hidden.shape == (4, B, L, D)
    np.testing.assert_array_equal(out.hidden[3][..., :E], out.last)
    assert not np.asarray(out.hidden)[[0, 3], ..., E:].any()
    logits = jit(model.apply)({"params": params}, rows["tokens"])[1]["lm"]
    last, _, _ = theirs(rows["tokens"], jax.tree.map(np.zeros_like, rows["carry"]), none)
    words = last @ theirs.table.T + theirs.bias
    np.testing.assert_allclose(logits, words.detach(), atol=1e-5)


def test_a_training_step_is_that_of_the_released_code(torch, monkeypatch):
    """Loss, penalties and all gradients, under given masks."""
    model, params = made()
    rows, rng = batch(), np.random.default_rng(9)
    drawn = {}

    def mask(self, shape, rows=True):
        same = [name for name in drawn if name[:2] == (self.rate, shape)]
        name = (self.rate, shape, len(same))
        drawn[name] = rng.random(shape) >= self.rate
        seen.append((self.rate, shape, rows))
        return drawn[name]

    seen = []
    monkeypatch.setattr(Dropout, "mask", mask)
    objective = CausalLM(stateful=True, activation=2.0, temporal=1.0)
    weights = objective.weights(rows)

    def loss(params):
        sums, _, state = bound(model, functools.partial(objective.losses, train=True))(params, rows)
        return sum(c * sums[t] / weights[t] for t, c in objective.coefficients.items()), state

    (value, state), grads = jit(jax.value_and_grad(loss, has_aux=True))(params)
    recurrent = [(0.5, (D, 4, D), False), (0.3, (B, D), True)]
    assert seen == [
        (0.1, (1, WORDS), False),
        (0.2, (B, E), True),
        *recurrent,
        *recurrent,
        (0.5, (E, 4, E), False),
        (0.4, (B, E), True),
    ]

    def scaled(rate, shape, number=0):
        return torch.tensor(drawn[rate, shape, number] * np.float32(Dropout(rate).scale))

    masks = dict(words=scaled(0.1, (1, WORDS)).T, output=scaled(0.4, (B, E))[:, None])
    masks["embedding"] = scaled(0.2, (B, E))[:, None]
    for i in range(2):
        masks[f"weights_{i}"] = scaled(0.5, (D, 4, D), i)
        masks[f"between_{i}"] = scaled(0.3, (B, D), i)[:, None]
    masks["weights_2"] = scaled(0.5, (E, 4, E))
    theirs = Torch(torch, params)
    last, raw, after = theirs(rows["tokens"], rows["carry"], masks)
    words = (last @ theirs.table.T + theirs.bias).reshape(-1, WORDS)
    expected = torch.nn.functional.cross_entropy(words, torch.tensor(rows["targets"].ravel()))
    expected = expected + 2 * last.pow(2).mean() + (raw[:, 1:] - raw[:, :-1]).pow(2).mean()
    expected.backward()
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    close(grads["encoder"]["word"]["embedding"], theirs.table.grad)
    close(grads["lm"]["bias"], theirs.bias.grad)
    for i, layer in enumerate(theirs.layers):
        own = grads["encoder"]["stack"][f"layer_{i}"]
        for name, p in zip(("input", "recurrent", "bias"), layer, strict=True):
            close(own[name], p.grad, err_msg=f"{name} of layer {i}")
    for name, array in after.items():
        close(state[name], array.detach())


def test_parameter_count_is_the_papers():
    """24,221,600 with two biases for a layer, as the released code has; here there is one."""
    model = create(dict(family="awd_lstm", vocab_size=10_000) | awd_lstm.size("medium"), ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    second = 4 * (1150 + 1150 + 400)
    assert parameter_count(shapes["params"]) == 24_221_600 - second


def test_initial_values_are_those_of_the_released_code():
    model = create(SMALL | dict(hidden_size=400, embedding_size=100, vocab_size=300), ("lm",))
    tokens = jnp.zeros((1, 4), jnp.int32)
    params = jit(model.init)(jax.random.key(1), tokens)["params"]
    assert not params["lm"]["bias"].any()
    ranges = {"word/embedding": 0.1, "layer_0": 0.05, "layer_1": 0.05, "layer_2": 0.1}
    for part, limit in ranges.items():
        leaves = params["encoder"]["word"] if "word" in part else params["encoder"]["stack"][part]
        for leaf in jax.tree.leaves(leaves):
            assert 0.98 * limit < abs(leaf).max() <= limit and abs(leaf.mean()) < 0.1 * limit


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dict(scan=True), "scan=True needs layers of one shape"),
        (dict(embedding_size=11), "embedding_size=11: expected at most model.hidden_size=10"),
        (dict(word_dropout=1.0), r"word_dropout=1.0 should lie in \[0, 1\)"),
        (dict(weight_dropout=-0.1), r"weight_dropout=-0.1 should lie in \[0, 1\)"),
    ],
)
def test_what_awd_lstm_cannot_be(spec, message):
    with pytest.raises(FirthError, match=message):
        create(SMALL | spec)
