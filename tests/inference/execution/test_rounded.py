"""Parameters rounded to bfloat16 ahead of a program's calls change no bit of its values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.published.families import make_generator

import firth
from firth.inference.execution import kept
from firth.inference.execution.program import Program
from firth.inference.execution.rounded import Rounding, rounded, split
from firth.inference.score import score

TEXTS = ["the cat sat on the mat .", "dogs ran", "a fish ate"]


def names(params) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rest_of(function, params, *arrays):
    """(roundings, value, StableHLO) of what is left of a function."""
    roundings, rest = split(function, params, arrays)
    leaves = jax.tree.leaves(params)
    values = [rounded(leaves[rounding.leaf], rounding.axes) for rounding in roundings]
    given = params, values, *arrays
    return roundings, rest(*given), jax.jit(rest).lower(*given).as_text()


def test_all_kernels_and_the_table_of_words_are_rounded_ahead(model):
    """What is read otherwise too, such as the embeddings of words, is also given as it is."""
    encoder = firth.load(model, heads=("mlm",), dtype="bfloat16")
    score(encoder, TEXTS)
    (program,) = encoder._programs.values()
    found = {names(encoder.params)[one.leaf]: one.axes for one in encoder._narrow}
    kernels = {name: (0, 1) for name in names(encoder.params) if name.endswith("['kernel']")}
    assert found == kernels | {"['encoder']['word']['embedding']": (1, 0)}
    assert all(value.dtype == jnp.bfloat16 for _, value in encoder._narrow.values())
    tokens = np.ones((3, 8), np.int32)
    arrays = tokens, tokens, tokens > 0, np.ones(3, np.int32), np.ones((3, 2), np.int32)
    _, value, text = rest_of(program._function, encoder.params, *arrays)
    np.testing.assert_array_equal(value, program._function(encoder.params, *arrays))
    # Rows of activations are rounded in each call, and no parameter is.
    narrowed = [line for line in text.splitlines() if "convert" in line and "bf16" in line]
    shapes = {f"tensor<{'x'.join(map(str, x.shape))}x" for x in jax.tree.leaves(encoder.params)}
    assert narrowed and not any(shape in line for line in narrowed for shape in shapes)


@pytest.mark.parametrize("kind", ["bidirectional", "causal"])
def test_scores_stay_the_same_to_the_bit(model, tokenizer, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(kept, "read", lambda key, devices: None)
    if kind == "causal":
        make_generator(tmp_path / "m", tokenizer)
        model = tmp_path / "m"
    ahead, within = (firth.load(model, dtype="bfloat16") for _ in range(2))
    within._narrow = None
    found = [[one.log_probs for one in score(encoder, TEXTS)] for encoder in (ahead, within)]
    assert ahead._narrow and not firth.load(model)._narrow
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_axes_are_followed_through_transpositions():
    def function(params, x):
        turned = jax.lax.optimization_barrier(params["w"].transpose(2, 0, 1)).transpose(1, 0, 2)
        return x + jax.lax.stop_gradient(turned).astype(jnp.bfloat16).astype(jnp.float32)

    params, x = {"w": numbers(2, 3, 4)}, numbers(2, 4, 3, seed=1)
    roundings, value, text = rest_of(function, params, x)
    assert roundings == (Rounding(0, (0, 2, 1)),)
    np.testing.assert_array_equal(value, function(params, x))
    assert "transpose" not in text


def test_other_uses_see_the_parameter_itself():
    def function(params, x):
        w, b = params["w"], params["b"]
        narrow = w.astype(jnp.bfloat16).astype(jnp.float32)
        return x @ narrow, w - narrow, (-w).astype(jnp.bfloat16), b.astype(jnp.float16)

    params, x = {"b": numbers(5), "w": numbers(4, 5)}, numbers(3, 4, seed=1)
    roundings, value, _ = rest_of(function, params, x)
    assert roundings == (Rounding(1, (0, 1)),)
    for one, other in zip(value, function(params, x), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(value[1]).max() > 1e-4


def test_other_parameters_are_rounded_anew():
    def function(params, x):
        return x @ params.astype(jnp.bfloat16).astype(jnp.float32)

    x, *kernels = (jnp.array(numbers(4, 4, seed=seed)) for seed in range(3))
    program = Program(function, None, {})
    for kernel in (*kernels, kernels[0]):
        np.testing.assert_array_equal(program(kernel, x), jax.jit(function)(kernel, x))
    assert program.made == 1
