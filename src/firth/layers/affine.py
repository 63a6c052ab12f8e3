"""Products of rows with a kernel, whose gradients are computed in the order that a device likes.

M rows, D width, F features.
"""

import contextlib
import contextvars
import functools

import jax
import jax.numpy as jnp

PRODUCTS = ("float32", "bfloat16")  # what float32 operands may be multiplied in
_operands = contextvars.ContextVar("operands", default="float32")


@contextlib.contextmanager
def products_in(dtype: str):
    """Within it, float32 operands are multiplied in `dtype`, one of `PRODUCTS`.

    It counts while a function is traced, for dense layers, for inputs of recurrent layers and for
    the scores of words. Sums stay float32, and so do all other arrays, gradients included. Operands
    of another dtype stay as they are.
    """
    token = _operands.set(dtype)
    try:
        yield
    finally:
        _operands.reset(token)


def is_narrow(x) -> bool:
    """Whether x is multiplied in bfloat16 here although it is float32."""
    return _operands.get() == "bfloat16" and x.dtype == jnp.float32


def narrow_product(x, kernel_DF):
    """x [..., D] times the kernel, both rounded to bfloat16: float32 [..., F].

    Its gradients are products of rounded operands, too. CPUs with instructions for bfloat16 (AMD
    from Zen 4 on, Intel from Sapphire Rapids on) take half the time or less for them.
    """
    rounded = (jax.lax.stop_gradient(each).astype(jnp.bfloat16) for each in (x, kernel_DF))
    return _with_narrow_gradients(_float32_product(*rounded), x, kernel_DF)


def _float32_product(x, kernel_DF):
    return jnp.dot(x, kernel_DF, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _with_narrow_gradients(product, x, kernel_DF):
    """The product, which stays in sight of policies of `jax.checkpoint`, with its gradients."""
    del x, kernel_DF
    return product


def _narrow_forward(product, x, kernel_DF):
    return product, (x.astype(jnp.bfloat16), kernel_DF.astype(jnp.bfloat16))


def _narrow_backward(saved, gradient):
    x, kernel_DF = saved
    narrow = gradient.astype(x.dtype)
    dx = _float32_product(narrow, kernel_DF.T)
    rows = (each.reshape(-1, each.shape[-1]) for each in (x, narrow))
    dkernel_DF = jax.lax.platform_dependent(
        *rows,
        cpu=functools.partial(_turned, preferred_element_type=jnp.float32),
        default=kernel_gradient,
    )
    return jnp.zeros_like(gradient), dx, dkernel_DF


_with_narrow_gradients.defvjp(_narrow_forward, _narrow_backward)


def multiply(x_MD, kernel_DF):
    """The product [M, F], summed and put out in float32."""
    if is_narrow(x_MD):
        return narrow_product(x_MD, kernel_DF)
    return _multiply(x_MD, kernel_DF)


@jax.custom_vjp
def _multiply(x_MD, kernel_DF):
    return _float32_product(x_MD, kernel_DF)


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
    dx_MD = _float32_product(gradient_MF, kernel_DF.T)
    dkernel_DF = kernel_gradient(x_MD, gradient_MF)
    return dx_MD.astype(x_MD.dtype), dkernel_DF.astype(kernel_DF.dtype)


_multiply.defvjp(lambda *given: (_multiply(*given), given), _backward)


def dot_general(x, kernel_DF, dimensions, precision=None):
    """`jax.lax.dot_general` for `nn.Dense`: x [..., D] to [..., F], in the operands' dtype.

    The gradient of the kernel sums over all rows. On a CPU, XLA's product takes both sides with the
    rows in an order that runs at a half or a third of the rate of its others. Other devices keep
    JAX's own rule. The product itself stays in sight of policies of `jax.checkpoint`.
    """
    if is_narrow(x):
        return narrow_product(x, kernel_DF)
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
        cpu=functools.partial(_turned, precision=precision),
        default=lambda _, gradient: jax.linear_transpose(of_kernel, shape)(gradient)[0],
    )
    return gradient, jnp.zeros_like(x), dkernel_DF


_with_gradient.defvjp(lambda product, x, *_: (product, x), _gradient_backward)


def _turned(x, gradient, **options):
    """The gradient [D, F], after the narrower of its two factors was turned in memory."""
    x_MD, gradient_MF = (each.reshape(-1, each.shape[-1]) for each in (x, gradient))
    narrow, wide = sorted((x_MD, gradient_MF), key=lambda each: each.shape[-1])
    # Without the barriers XLA would fold what turns, here or later, into the product, and has no
    # such product of bfloat16. It would multiply in float32 without the axis that comes and goes.
    turned = jax.lax.optimization_barrier(narrow.T[None])[0]
    product = jnp.dot(turned, wide, **options)
    if narrow is not x_MD or narrow.dtype == jnp.bfloat16:
        product = jax.lax.optimization_barrier(product)
    return product if narrow is x_MD else product.T
