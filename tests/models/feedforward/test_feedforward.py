"""The feed-forward and the log-bilinear language model against torch and numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit

from firth.errors import FirthError
from firth.models.model import create

V, E, L = 23, 6, 9
KINDS = {
    "tanh": dict(hidden_size=10),
    "direct": dict(hidden_size=10 + 3 * E, direct=True),
    "log_bilinear": dict(hidden_size=E, activation="linear", tied_softmax=True),
}


def build(kind, **fields):
    """(model, random parameters as numpy, random tokens [3, L])."""
    spec = dict(family="feedforward", vocab_size=V, order=4, embedding_size=E)
    model = create(spec | KINDS[kind] | fields, ("lm",))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, L), jnp.int32))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(0, 0.5, x.shape).astype(np.float32), shapes)
    return model, params, rng.integers(0, V, (3, L)).astype(np.int32)


def apply(model, params, tokens, mask=None):
    return jit(model.apply)({"params": params}, tokens, None, mask)


def by_torch(torch, params, tokens, kind):
    """Logits [3, L, V] by torch: one embedding bag of 3 words for every place."""
    body = params["encoder"]
    rows = np.concatenate([body["word"]["embedding"], body["begin_bias"][None]])  # id V: the begin
    embed = torch.nn.Embedding.from_pretrained(torch.tensor(rows))
    padded = np.concatenate([np.full((3, 2), V), tokens], axis=1)
    context = np.stack([padded[:, 2 - k : 2 - k + L] for k in range(3)], axis=-1)  # nearest first
    x = embed(torch.tensor(context)).flatten(2)
    units = body["hidden"]["kernel"].shape[1]
    hidden = torch.nn.Linear(3 * E, units, bias=kind != "log_bilinear")
    tied = kind == "log_bilinear"
    table = body["word"]["embedding"] if tied else params["lm"]["softmax"].T
    softmax = torch.nn.Linear(table.shape[1], V)
    with torch.no_grad():
        hidden.weight.copy_(torch.tensor(body["hidden"]["kernel"].T))
        if kind != "log_bilinear":
            hidden.bias.copy_(torch.tensor(body["hidden"]["bias"]))
        softmax.weight.copy_(torch.tensor(table))
        softmax.bias.copy_(torch.tensor(params["lm"]["bias"]))
        h = hidden(x) if kind == "log_bilinear" else torch.tanh(hidden(x))
        h = torch.cat([h, x], -1) if kind == "direct" else h
        return h.numpy(), softmax(h).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_torch(torch, kind):
    model, params, tokens = build(kind)
    out, logits = apply(model, params, tokens)
    h, expected = by_torch(torch, params, tokens, kind)
    np.testing.assert_allclose(out.last, h, atol=1e-5)
    np.testing.assert_allclose(logits["lm"], expected, atol=1e-5)
    assert out.hidden.shape == (2, 3, L, out.last.shape[-1])
    np.testing.assert_array_equal(
        out.hidden[0, ..., :E], params["encoder"]["word"]["embedding"][tokens]
    )


def test_the_log_bilinear_model_is_its_definition():
    """Mnih and Hinton 2007, equation 5: a matrix for each position, products with the words."""
    model, params, tokens = build("log_bilinear")
    words = params["encoder"]["word"]["embedding"].astype(np.float64)
    matrices = params["encoder"]["hidden"]["kernel"].astype(np.float64).reshape(3, E, E)
    predicted = sum(words[tokens[0, 5 - k]] @ matrices[k] for k in range(3))
    expected = words @ predicted + params["lm"]["bias"]
    np.testing.assert_allclose(apply(model, params, tokens)[1]["lm"][0, 5], expected, atol=1e-5)


def test_a_word_sees_so_many_before_it_and_no_more():
    model, params, tokens = build("tanh")
    before = apply(model, params, tokens)[1]["lm"]
    other = tokens.copy()  # the call before may still be reading its own
    other[:, 4] = (tokens[:, 4] + 1) % V
    changed = np.abs(apply(model, params, other)[1]["lm"] - before).max((0, 2)) > 1e-6
    assert np.flatnonzero(changed).tolist() == [4, 5, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_with_a_cache_gives_the_states_of_the_whole_text(kind):
    """A prompt of 2 and 5 tokens, then a token at a time; slots between the two stay empty."""
    model, params, tokens = build(kind)
    lengths, P = np.array([2, 5, 4]), 5
    whole = np.asarray(apply(model, params, tokens)[0].last)

    def extend(*args):
        return model.apply(
            {"params": params}, *args, method=lambda m, *given: m.encoder.extend(*given)
        )

    places = np.arange(P)
    cache = model.encoder.empty_cache(3, P + 4)
    visible = np.zeros((3, P, P + 4), bool)
    visible[:, :, :P] = places <= places[:, None]
    last, cache = extend(tokens[:, :P], None, visible, cache, 0)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(last[row, :length], whole[row, :length], atol=1e-5)
    slots = np.arange(P + 4)
    for step in range(4):
        now = tokens[np.arange(3), lengths + step][:, None]
        visible = (slots < lengths[:, None]) | ((slots >= P) & (slots <= P + step))
        last, cache = extend(now, None, visible[:, None], cache, P + step)
        np.testing.assert_allclose(
            last[:, 0], whole[np.arange(3), lengths + step], atol=1e-5, err_msg=str(step)
        )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(order=1), "order=1 should be at least 2"),
        (dict(num_layers=2), "has 1 layer"),
        (dict(activation="relu"), "one of tanh, linear"),
        (dict(hidden_size=4), "expected at least model.embedding_size=6"),
        (dict(direct=True), "more than 18"),
        (dict(tied_softmax=True), "needs model.direct=False"),
        (dict(embedding_dropout=1.0), "should lie in"),
        (dict(dtype="int8"), "is unknown; one of float32"),
    ],
)
def test_what_cannot_be_is_refused(fields, said):
    with pytest.raises(FirthError, match=said):
        build("tanh", **fields)
