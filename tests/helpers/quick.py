"""`jit` for tests: a third of the time to compile, for code that runs once and on little data."""

import functools

import jax

OPTIONS = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
XLA_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in OPTIONS.items())
jit = functools.partial(jax.jit, compiler_options=OPTIONS)
