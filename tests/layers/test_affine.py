"""Tests for the products of rows with a kernel."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firth.layers.affine import dot_general, multiply, products_in
from firth.layers.heads import word_scores

DIMENSIONS = (((2,), (0,)), ((), ()))


def case(features, width=5, dtype="float32"):
    """Rows [2, 3, width], a kernel, and the gradient of their product."""
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = (2, 3, width), (width, features), (2, 3, features)
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


@pytest.mark.parametrize("features", [1, 4, 5, 7])
def test_a_product_and_its_gradients_are_numpys(features):
    x, kernel, gradient = case(features)
    value, pull = jax.vjp(lambda x, kernel: dot_general(x, kernel, DIMENSIONS), x, kernel)
    dx, dkernel = jax.jit(pull)(gradient)
    x, kernel, gradient = (np.asarray(each, np.float64) for each in (x, kernel, gradient))
    np.testing.assert_allclose(value, x @ kernel, atol=1e-5)
    np.testing.assert_allclose(dx, gradient @ kernel.T, atol=1e-5)
    np.testing.assert_allclose(dkernel, np.einsum("bld,blf->df", x, gradient), atol=1e-5)


def test_gradients_have_the_operands_dtype():
    x, kernel, gradient = case(4, dtype="bfloat16")
    value, pull = jax.vjp(lambda x, kernel: dot_general(x, kernel, DIMENSIONS), x, kernel)
    assert {each.dtype for each in (value, *pull(gradient))} == {jnp.dtype("bfloat16")}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices keep JAX's own rule")
@pytest.mark.parametrize("width, features", [(64, 128), (128, 64), (64, 64)])
def test_on_a_cpu_the_first_factor_has_its_rows_last(width, features):
    x, kernel, gradient = case(features, width)

    def kernel_gradient(x, gradient):
        return jax.vjp(lambda kernel: dot_general(x, kernel, DIMENSIONS), kernel)[1](gradient)

    text = jax.jit(kernel_gradient).lower(x, gradient).compile().as_text()
    axes = r"lhs_contracting_dims=\{\d\}, rhs_contracting_dims=\{\d\}"
    assert re.findall(axes, text) == ["lhs_contracting_dims={1}, rhs_contracting_dims={0}"]


def by_words(x, kernel):
    return word_scores(x, kernel.T)


def by_dense(x, kernel):
    return dot_general(x, kernel, DIMENSIONS)


def by_rows(x, kernel):
    return multiply(x.reshape(-1, x.shape[-1]), kernel).reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize("product", [by_words, by_dense, by_rows])
@pytest.mark.parametrize("features", [4, 7])
def test_narrow_products_round_their_operands_and_nothing_else(product, features):
    """Product and gradients are numpy's of rounded operands, in float32; so without the setting."""
    given = case(features)

    def run():
        value, pull = jax.vjp(product, *given[:2])
        return value, *jax.jit(pull)(given[2])

    with products_in("bfloat16"):
        found = run()
    x, kernel, gradient = (np.asarray(jnp.asarray(e, jnp.bfloat16), np.float64) for e in given)
    wanted = x @ kernel, gradient @ kernel.T, np.einsum("bld,blf->df", x, gradient)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, atol=1e-5)
    exact = run()[0]
    np.testing.assert_allclose(exact, np.asarray(given[0], np.float64) @ given[1], atol=1e-5)
    assert np.abs(exact - found[0]).max() > 1e-3


def widens(product, *operands) -> bool:
    """Whether XLA makes float32 of bfloat16 somewhere in the product."""
    text = jax.jit(product).lower(*operands).compile().as_text()
    return bool(re.search(r"= f32\S+ convert\(", text))


def test_a_narrow_kernel_gradient_is_as_narrow_as_this_machine_can():
    x, kernel, gradient = case(128, 64)
    rounded = x.reshape(-1, 64).astype(jnp.bfloat16), kernel.astype(jnp.bfloat16)
    if widens(functools.partial(jnp.dot, preferred_element_type=jnp.float32), *rounded):
        pytest.skip("this CPU has no products of bfloat16")

    def table_gradient(x, table, gradient):
        with products_in("bfloat16"):
            return jax.vjp(lambda table: by_dense(x, table.T), table)[1](gradient)[0]

    given = x, kernel.T, gradient
    assert not widens(table_gradient, *given)
    found = jax.jit(table_gradient)(*given)  # XLA's own product of bfloat16 cannot be turned
    np.testing.assert_allclose(found, np.einsum("bld,blf->fd", x, gradient), atol=0.1)


def test_operands_of_another_dtype_stay_as_they_are():
    x, kernel, _ = case(4, dtype="bfloat16")
    with products_in("bfloat16"):
        assert by_dense(x, kernel).dtype == jnp.bfloat16
