"""ELMo against torch word by word, the parameter counts of its paper, and what a layer may see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.elmo import SMALL, in_torch, made
from helpers.quick import jit

from firth.errors import FirthError
from firth.models.elmo import bilm
from firth.models.model import create, parameter_count
from firth.tokenizers.spelling import spell

TEXTS = [["the", "cat", "sat", "on"], ["naïvely", "x"], []]


def batch():
    """(character ids, mask) of TEXTS, padded with no words."""
    W, L = SMALL["max_characters"], 5
    ids, mask = np.zeros((len(TEXTS), L, W), np.int32), np.zeros((len(TEXTS), L), bool)
    for row, words in enumerate(TEXTS):
        ids[row, : len(words)], mask[row, : len(words)] = spell(words, W)[0], True
    return ids, mask


def apply(model, params, ids, mask, memory=None):
    def encode(model, *given):
        return model.encoder(*given[:3], memory=given[3])

    run = jit(lambda params, *given: model.apply({"params": params}, *given, method=encode))
    return run(params, ids, None, mask, memory)


@pytest.mark.parametrize("changes", [{}, {"skip_connections": False}], ids=["skip", "plain"])
def test_layers_and_states_are_those_of_torch(changes):
    torch = pytest.importorskip("torch")
    model, params = made(**changes)
    config, (ids, mask) = model.encoder.config, batch()
    rng = np.random.default_rng(3)
    shapes = model.encoder.empty_memory(3)
    memory = {k: rng.normal(0, 0.2, v.shape).astype(np.float32) for k, v in shapes.items()}
    rows = [spell(["<S>", *words, "</S>"], SMALL["max_characters"])[0] for words in TEXTS]
    for before in (None, memory):
        out = apply(model, params, ids, mask, before)
        theirs, after = in_torch(torch, config, params, rows, before)
        assert out.hidden.shape == (3, 3, 5, 10)
        for row, words in enumerate(TEXTS):
            ours = out.hidden[:, row, : len(words)]
            np.testing.assert_allclose(ours, theirs[row], rtol=1e-4, atol=3e-6)
            for direction, states in after[row].items():
                for n, (c, h) in enumerate(states):
                    np.testing.assert_allclose(out.memory[f"{direction}_c"][row, n], c, atol=3e-6)
                    np.testing.assert_allclose(out.memory[f"{direction}_h"][row, n], h, atol=3e-6)


def test_a_direction_sees_its_own_side_alone():
    model, params = made(cell_clip=0.0, projection_clip=0.0)
    _, mask = batch()
    vectors = np.random.default_rng(0).normal(size=(3, 5, 5)).astype(np.float32)

    def at(vectors, place, half):
        out, _ = model.apply({"params": params}, vectors, None, mask)
        return out.hidden[2, 0, place, 5 * half : 5 * half + 5].sum()

    for half in (0, 1):
        gradient = np.abs(jit(jax.grad(at), static_argnums=(1, 2))(vectors, 2, half)).sum(-1)
        assert (gradient[1:] == 0).all()
        seen = slice(0, 3) if half == 0 else slice(2, 4)
        assert (gradient[0, seen] > 0).all()
        assert gradient[0].sum() == pytest.approx(gradient[0, seen].sum())


@pytest.mark.parametrize(
    "size, count", [("small", 13_593_312), ("medium", 28_027_744), ("original", 93_600_864)]
)
def test_parameter_counts_are_the_published_ones(size, count):
    """13.6, 28.0 and 93.6 million, one row of padding in the character table included."""
    model = create(dict(family="elmo", **bilm.size(size)))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    assert parameter_count(shapes) == count


def test_words_of_one_character_and_vectors_made_before():
    model, params = made()
    ids = np.array([[70, 80, 3]])
    wide = np.pad(ids[..., None], ((0, 0), (0, 0), (0, 2)))
    one, two = (model.apply({"params": params}, x)[0].hidden for x in (ids, wide))
    np.testing.assert_array_equal(one, two)
    vectors = model.apply({"params": params}, wide, method=lambda m, x: m.encoder.embed(x))
    again = jit(model.apply)({"params": params}, vectors)[0].hidden
    np.testing.assert_allclose(again, two, rtol=1e-6, atol=1e-7)


def test_the_softmax_reads_each_half():
    model, params = made(("bilm",))
    params["bilm"]["bias"] = np.arange(11, dtype=np.float32)
    ids, mask = batch()
    out, logits = jit(model.apply)({"params": params}, ids, None, mask)
    assert logits["bilm"].shape == (3, 5, 2, 11)
    table = params["bilm"]["table"]
    for half in (0, 1):
        own = out.last[0, 1, 5 * half : 5 * half + 5] @ table.T + np.arange(11)
        np.testing.assert_allclose(logits["bilm"][0, 1, half], own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_size": 9}, "model.hidden_size=9 is odd"),
        ({"cell_size": 0}, "model.cell_size=0 should be at least 1"),
        ({"filter_widths": (1,)}, "model.filter_widths has 1 entries and model.filter_counts 2"),
        ({"filter_counts": (1, 0)}, r"model.filter_widths with model.filter_counts has \[3, 0\]"),
        ({"max_characters": 2}, "model.max_characters=2 is below the widest filter, 3"),
        ({"activation": "gelo"}, "model.activation='gelo' is unknown"),
        ({"remat": "full"}, "model.remat='full' is unknown; one of none"),
    ],
)
def test_errors_name_the_field(changes, message):
    with pytest.raises(FirthError, match=message):
        create(SMALL | changes)


def test_no_attentions_and_no_other_size():
    model, params = made()
    with pytest.raises(FirthError, match="ELMo has no attentions"):
        model.apply({"params": params}, np.zeros((1, 2), int), attentions=True)
    with pytest.raises(FirthError, match="ELMo has no size 'large'; choose one of tiny, small"):
        bilm.size("large")
