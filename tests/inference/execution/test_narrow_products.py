"""bfloat16 on a CPU: float32 products of rounded arrays, and the line where that is not faster."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import firth
from firth import cli
from firth.inference.execution import bfloat16


def products(text: str) -> list[tuple[str, ...]]:
    """The dtypes (operands, result) of the products with parameters in StableHLO."""
    found = [
        line.rsplit(":", 1)[1] for line in text.splitlines() if "stablehlo.dot_general" in line
    ]
    return [tuple("bf16" if "bf16" in x else "f32" for x in one.split("->")) for one in found]


def test_products_are_float32_of_rounded_arrays(model):
    encoder = firth.load(model, heads=False, dtype="bfloat16")
    kernel = encoder.params["encoder"]["stack"]["layer_0"]["mlp_in"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    assert encoder.params["encoder"]["norm"]["scale"].dtype == jnp.float32

    def forward(params, tokens):
        return encoder.model.apply({"params": params}, tokens)[0].last

    tokens = np.ones((2, 8), np.int32)
    wide = jax.jit(bfloat16.wide_products(forward)).lower(encoder.params, tokens)
    plain = jax.jit(forward).lower(encoder.params, tokens)
    # Six kernels a layer, and the pooler's is not needed; attention has two products a layer.
    assert products(plain.as_text()).count(("bf16", "bf16")) >= 12
    assert products(wide.as_text()).count(("bf16", "f32")) >= 12
    one, other = wide.compile()(encoder.params, tokens), plain.compile()(encoder.params, tokens)
    assert one.dtype == other.dtype == jnp.bfloat16
    np.testing.assert_allclose(one.astype("f4"), other.astype("f4"), atol=0.06)


def test_vectors_are_those_of_float32_but_for_rounding(model):
    texts = ["the cat sat on the mat .", "dogs ran"]
    whole, half = (firth.load(model, dtype=d).encode(texts) for d in ("float32", "bfloat16"))
    assert half.dtype == np.float32 and 1e-5 < np.abs(whole - half).max() < 0.05


@pytest.mark.parametrize(("rate", "said"), [(104.0, True), (150.0, False)])
def test_a_cpu_that_is_no_faster_is_named_in_a_line(
    model, tmp_path, monkeypatch, capsys, rate, said
):
    rates = {"float32": 100.0, "bfloat16": rate}
    monkeypatch.setattr(bfloat16, "product_rates", lambda *sizes: rates)
    (tmp_path / "in").write_text("the cat\n")
    argv = ["represent", f"--model={model}", f"--input={tmp_path}/in", f"--output={tmp_path}/o.npy"]
    assert cli.main([*argv, "--dtype=bfloat16"]) == 0
    lines = [x for x in capsys.readouterr().err.splitlines() if "bfloat16" in x]
    line = "firth: bfloat16 is not faster than float32 on this CPU: its products reach "
    assert lines == [line + "104 GFLOP/s against 100"] * said
    assert cli.main(argv) == 0 and "bfloat16" not in capsys.readouterr().err


def test_the_rates_of_both_dtypes_are_measured():
    rates = bfloat16.product_rates(32, 64, rounds=2)
    assert set(rates) == {"float32", "bfloat16"} and min(rates.values()) > 0
