"""Products of rows with a kernel, whose gradients are computed in the order that a device likes.

M rows, D width, F features.
"""

import functools

import jax
import jax.numpy as jnp


@jax.custom_vjp
def multiply(x_MD, kernel_DF):
    """The product [M, F], summed and put out in float32."""
    return jnp.dot(x_MD, kernel_DF, preferred_element_type=jnp.float32)


def kernel_gradient(x_MD, gradient_MF):
    """The gradient [D, F] of a kernel.

    JAX's own rule makes [F, D], which a CPU then turns, at a fifth of the product's time.
    """
    rows = (((0,), (0,)), ((), ()))
    return jax.lax.dot_general(
        x_MD, gradient_MF.astype(x_MD.dtype), rows, preferred_element_type=jnp.float32
    )


def _backward(saved, gradient_MF):
    x_MD, kernel_DF = saved
    gradient_MF = gradient_MF.astype(kernel_DF.dtype)
    dx_MD = jnp.dot(gradient_MF, kernel_DF.T, preferred_element_type=jnp.float32)
    dkernel_DF = kernel_gradient(x_MD, gradient_MF)
    return dx_MD.astype(x_MD.dtype), dkernel_DF.astype(kernel_DF.dtype)


multiply.defvjp(lambda *given: (multiply(*given), given), _backward)


def dot_general(x, kernel_DF, dimensions, precision=None):
    """`jax.lax.dot_general` for `nn.Dense`: x [..., D] to [..., F], in the operands' dtype.

    The gradient of the kernel sums over all rows. On a CPU, XLA's product takes both sides with the
    rows in an order that runs at a half or a third of the rate of its others. Other devices keep
    JAX's own rule. The product itself stays in sight of policies of `jax.checkpoint`.
    """
    product = jax.lax.dot_general(x, jax.lax.stop_gradient(kernel_DF), dimensions, precision)
    return _with_gradient(product, x, kernel_DF, dimensions, precision)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _with_gradient(product, x, kernel_DF, dimensions, precision):
    """The product; its gradient also goes to the kernel."""
    del x, kernel_DF, dimensions, precision
    return product


def _gradient_backward(dimensions, precision, x, gradient):
    def of_kernel(kernel_DF):
        return jax.lax.dot_general(x, kernel_DF, dimensions, precision)

    shape = jax.ShapeDtypeStruct((x.shape[-1], gradient.shape[-1]), x.dtype)
    dkernel_DF = jax.lax.platform_dependent(
        x,
        gradient,
        cpu=functools.partial(_turned, precision),
        default=lambda _, gradient: jax.linear_transpose(of_kernel, shape)(gradient)[0],
    )
    return gradient, jnp.zeros_like(x), dkernel_DF


_with_gradient.defvjp(lambda product, x, *_: (product, x), _gradient_backward)


def _turned(precision, x, gradient):
    """The gradient [D, F], after the narrower of its two factors was turned in memory."""
    x_MD, gradient_MF = (each.reshape(-1, each.shape[-1]) for each in (x, gradient))
    narrow, wide = sorted((x_MD, gradient_MF), key=lambda each: each.shape[-1])
    # Without the barriers XLA would fold what turns into the product.
    product = jnp.dot(jax.lax.optimization_barrier(narrow.T), wide, precision=precision)
    return product if narrow is x_MD else jax.lax.optimization_barrier(product).T
