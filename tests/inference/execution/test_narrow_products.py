"""bfloat16 on a CPU: float32 products of rounded arrays, and the line where that is not faster."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.published.families import make_generator

import firth
from firth import cli
from firth.inference import decode, fill
from firth.inference.execution import bfloat16
from firth.models.model import bound


def products(text: str) -> list[tuple[str, ...]]:
    """The dtypes (operands, result) of the products with parameters in StableHLO."""
    found = [
        line.rsplit(":", 1)[1] for line in text.splitlines() if "stablehlo.dot_general" in line
    ]
    return [tuple("bf16" if "bf16" in x else "f32" for x in one.split("->")) for one in found]


def both(source) -> list:
    """The model in float32 and with narrow products."""
    return [firth.load(source, dtype=dtype) for dtype in ("float32", "bfloat16")]


def test_products_with_parameters_alone_are_narrow(model):
    encoder = firth.load(model, heads=("mlm",), dtype="bfloat16")
    assert {leaf.dtype for leaf in jax.tree.leaves(encoder.params)} == {jnp.dtype("float32")}

    def logits(model, tokens):
        return model.mlm(model.encoder(tokens).last)

    tokens = np.ones((2, 8), np.int32)
    lowered = jax.jit(bound(encoder.model, logits)).lower(encoder.params, tokens)
    found = products(lowered.as_text())
    # Three layers of six kernels and two products of attention; the head's kernel and the words.
    assert found.count(("bf16", "f32")) == 3 * 6 + 2
    assert found.count(("f32", "f32")) == 3 * 2 and len(found) == 3 * 8 + 2
    assert lowered.out_info.dtype == jnp.float32


def test_what_generates_is_narrow(torch, tokenizer, tmp_path):
    """The prefill and every decode step; a model without the setting has programs of its own."""
    make_generator(tmp_path / "m", tokenizer)
    tokens, lengths = np.ones((1, 4), np.int32), np.full(1, 4)
    found, start = [], None
    for encoder in both(tmp_path / "m"):
        given = encoder.model, encoder.params
        state = jax.device_get(decode._prefill(*given, tokens, lengths, 8))
        start = start or state  # of the first one, so that the steps of both begin alike
        vocabulary = encoder.saved.spec["vocab_size"]
        fixed = dict(listed=np.ones(vocabulary, bool), end=-1, lengths=lengths, slot=4)
        rest = jax.tree.map(jnp.array, start), fixed, {}, np.ones(1, bool), 0, 1
        _, (after, _) = decode._decode_steps(*given, *rest, size=1)
        found.append((state[0], after))
    for one, other in zip(*found, strict=True):
        assert 1e-6 < np.abs(one - other).max() < 0.05


def test_what_fills_is_narrow(model):
    tokens, rows = np.ones((1, 8), np.int32), np.array([[0, 3]])
    found, start = [], None
    for encoder in both(model):
        given = encoder.model, encoder.params
        last = fill._encode(*given, tokens, np.zeros_like(tokens), np.ones((1, 8), bool))
        start = last if start is None else start  # the head of both reads the first one's
        words = np.ones(encoder.saved.spec["vocab_size"], bool)
        found.append((last, fill._choose(*given, start, rows, words, restricted=True, top=3)[0]))
    for one, other in zip(*found, strict=True):
        assert 1e-7 < np.abs(one - other).max() < 0.05


PAIR = {"sentence_good": "the cat sat", "sentence_bad": "the cat dogs", "UID": "u"}


@pytest.mark.parametrize(
    ("text", "command", "key"),
    [
        ("the cat sat", "score --model {} --input", lambda found: found["total"]),
        (json.dumps(PAIR), "evaluate --models {} --pairs", lambda found: found["scores"]["m"][0]),
    ],
)
def test_scores_are_those_of_float32_but_for_rounding(model, tmp_path, text, command, key):
    (tmp_path / "in.jsonl").write_text(f"{text}\n")
    totals = []
    for dtype in ("float32", "bfloat16"):
        output = tmp_path / f"{dtype}.jsonl"
        argv = [*command.format(model).split(), str(tmp_path / "in.jsonl"), f"--dtype={dtype}"]
        assert cli.main([*argv, f"--output={output}"]) == 0
        totals.append(key(json.loads(output.read_text())))
    assert 1e-5 < abs(totals[0] - totals[1]) < 0.01 * abs(totals[0])


def test_vectors_are_those_of_float32_but_for_rounding(model):
    texts = ["the cat sat on the mat .", "dogs ran"]
    whole, half = (encoder.encode(texts) for encoder in both(model))
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
