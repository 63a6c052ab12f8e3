"""`jit` for tests: a third of the time to compile, for code that runs once and on little data."""

import functools

import jax

from helpers.compiler import OPTIONS

jit = functools.partial(jax.jit, compiler_options=OPTIONS)
