"""Recurrent highway networks against the equations of the paper in torch, double precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.layers.dropout import Dropout
from firth.models.model import bound, create, parameter_count
from firth.models.recurrent import rhn

WORDS, B, L, D, DEPTH = 17, 3, 5, 6, 3
SMALL = dict(family="rhn", vocab_size=WORDS, hidden_size=D, depth=DEPTH)
RATES = dict(word_dropout=0.1, embedding_dropout=0.2, state_dropout=0.3, output_dropout=0.4)


@functools.cache
def made():
    model = create(SMALL | RATES, ("lm",))
    params = initial(model, jnp.zeros((1, 4), jnp.int32), seed=1, scale=0.6)
    params["lm"]["bias"] = np.random.default_rng(2).normal(size=WORDS).astype(np.float32)
    return model, params


def rows():
    """(tokens, mask with padding, state)."""
    rng = np.random.default_rng(0)
    mask = np.arange(L) < np.array([[L], [3], [0]])
    state = {"s": rng.normal(0, 0.5, (B, D)).astype(np.float32)}
    return rng.integers(0, WORDS, (B, L)), mask, state


def reference(torch, params, tokens, mask, state, masks):
    """(dropped states [B, L, D], last states, logits): one row, step and layer at a time."""
    p = jax.tree.map(lambda x: torch.tensor(np.asarray(x), dtype=torch.float64), params)
    leaves = [x.requires_grad_() for x in jax.tree.leaves(p)]
    own, table = p["encoder"]["stack"], p["encoder"]["word"]["embedding"]
    states, last = [], []
    for b in range(B):
        s, found = torch.tensor(state["s"][b]).double(), []
        for t in range(L):
            if mask[b, t]:
                x = table[tokens[b, t]] * masks["words"][b, tokens[b, t]] * masks["embedding"][b]
                for i in range(DEPTH):
                    read = s * masks["state"][b]
                    z = torch.einsum("d,dgh->gh", read, own[f"recurrent_{i}"]) + own[f"bias_{i}"]
                    if i == 0:
                        z = z + torch.einsum("d,dgh->gh", x, own["input"])
                    gate = torch.sigmoid(z[1])
                    s = torch.tanh(z[0]) * gate + s * (1 - gate)
            found.append(s)
        states.append(torch.stack(found))
        last.append(s)
    dropped = torch.stack(states) * masks["output"][:, None]
    return dropped, torch.stack(last), dropped @ table.T + p["lm"]["bias"], leaves


@pytest.mark.parametrize("train", [False, True])
def test_it_is_that_of_the_paper(torch, monkeypatch, train):
    model, params = made()
    tokens, mask, state = rows()
    rng, seen, masks = np.random.default_rng(3), [], {}
    names = {0.1: "words", 0.2: "embedding", 0.3: "state", 0.4: "output"}

    def draw(self, shape, rows=True):
        keep = rng.random(shape) >= self.rate
        seen.append((self.rate, shape, rows))
        masks[names[self.rate]] = torch.tensor(keep * self.scale)
        return keep

    monkeypatch.setattr(Dropout, "mask", draw)
    coefficients = rng.normal(size=(B, L, WORDS)) * mask[..., None]

    def forward(model):
        out = model.encoder(tokens, None, mask, memory=state, train=train)
        return out, model.lm(out.last)

    def loss(params):
        out, logits = bound(model, forward)(params)
        return (logits * coefficients).sum(), (out, logits)

    (_, (out, logits)), grads = jit(jax.value_and_grad(loss, has_aux=True))(params)
    wide = [(rate, (B, D), True) for rate in (0.2, 0.3, 0.4)]
    assert seen == ([(0.1, (B, WORDS), True), *wide] if train else [])
    shapes = dict(words=(B, WORDS), embedding=(B, D), state=(B, D), output=(B, D))
    masks = {name: torch.ones(shape).double() for name, shape in shapes.items()} | masks
    dropped, last, words, leaves = reference(torch, params, tokens, mask, state, masks)
    (words * torch.tensor(coefficients)).sum().backward()
    real = torch.tensor(mask)
    np.testing.assert_allclose(np.asarray(out.last)[mask], dropped[real].detach(), atol=1e-6)
    np.testing.assert_allclose(out.memory["s"], last.detach(), atol=1e-6)
    np.testing.assert_allclose(np.asarray(logits)[mask], words[real].detach(), atol=1e-5)
    for own, p in zip(jax.tree.leaves(grads), leaves, strict=True):
        assert p.grad.abs().max() > 1e-3
        np.testing.assert_allclose(own, p.grad, rtol=1e-4, atol=1e-5)


def test_parameter_count_of_the_papers_best_network():
    """Table 1 of the paper: 23 M, of which the embeddings are 8.3 M."""
    model = create(dict(family="rhn", vocab_size=10_000) | rhn.size("medium"), ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    kernels, biases = 11 * 2 * 830**2, 10 * 2 * 830
    assert parameter_count(shapes["params"]) == 10_000 * 831 + kernels + biases == 23_482_400


def test_gates_begin_where_they_are_told():
    model = create(dict(family="rhn", vocab_size=300, hidden_size=200, depth=2), ("lm",))
    tokens = jnp.zeros((1, 4), jnp.int32)
    params = jit(model.init)(jax.random.key(1), tokens)["params"]
    for i in range(2):
        h, t = params["encoder"]["stack"][f"bias_{i}"]
        assert (t == -2).all() and 0.03 < abs(h).max() <= 0.04
    for leaf in (params["encoder"]["word"]["embedding"], params["lm"]["bias"]):
        assert 0.039 < abs(leaf).max() <= 0.04


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dict(depth=0), "depth=0 should be at least 1"),
        (dict(scan=True), "a recurrent highway network is one layer"),
        (dict(state_dropout=1.0), r"state_dropout=1.0 should lie in \[0, 1\)"),
    ],
)
def test_what_an_rhn_cannot_be(spec, message):
    with pytest.raises(FirthError, match=message):
        create(SMALL | spec)
