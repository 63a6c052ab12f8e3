"""What a compiled program computes and moves, against arithmetic."""

import jax
import jax.numpy as jnp
import pytest

from firth.planning.compiler import hlo
from firth.planning.compiler.work import part, product_flops, work

ROWS, WIDTH, LAYERS = 32, 64, 5


def done(function, *shapes):
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    return work(hlo.parse(jax.jit(function).lower(*arrays).compile().as_text()))


def stacked(weights, x):
    """LAYERS products and their sum."""
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0].sum()


def test_flops_of_a_scanned_stack_and_of_its_gradient():
    shapes = (LAYERS, WIDTH, WIDTH), (ROWS, WIDTH)
    forward = 2 * LAYERS * ROWS * WIDTH**2
    assert done(stacked, *shapes).flops == forward
    assert done(jax.grad(stacked), *shapes).flops == 3 * forward


def test_batched_products():
    def scores(q, k):
        return jnp.einsum("blhk,bmhk->bhlm", q, k)

    assert done(scores, (2, 8, 3, 16), (2, 24, 3, 16)).flops == 2 * (2 * 3) * 8 * 24 * 16


def instruction(text):
    module = hlo.parse(f"ENTRY %main (a: f32[1]) -> f32[1] {{\n{text}\n}}")
    return module, module.computations["main"]


@pytest.mark.parametrize(
    ("left", "right", "result", "labels", "flops"),
    [
        ("512,768", "768,3072", "512,3072", "dim_labels=bf_io->bf", 2 * 512 * 768 * 3072),
        ("2,512,12,64", "2,384,12,64", "2,12,512,384",
         "window={size=2x12 stride=1x11 lhs_dilate=2x12}, dim_labels=0b1f_0o1i->01bf",
         2 * (2 * 12) * 512 * 384 * 64),
        ("16,512,768", "16,512,3072", "768,3072,1",
         "window={size=16}, dim_labels=0fb_0io->bf0", 2 * (16 * 512) * 768 * 3072),
        ("1,8,3", "3,3,4", "1,8,4", "window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f",
         2 * 3 * 4 * (3 * 8 - 2)),
    ],
)  # fmt: skip
def test_the_convolutions_that_the_tpu_compiler_writes(left, right, result, labels, flops):
    """A product, scores of heads in batches, a weight's gradient over rows, a real convolution."""
    _, lines = instruction(
        f"  %l = bf16[{left}] parameter(0)\n  %r = bf16[{right}] parameter(1)\n"
        f"  ROOT %c = f32[{result}] convolution(%l, %r), {labels}"
    )
    assert product_flops(lines["c"], lines) == flops


SLICED = """
%update (p0: f32[6,8], p1: f32[8], i: s32[]) -> f32[6,8] {
  %p0 = f32[6,8] parameter(0)
  %p1 = f32[8] parameter(1)
  %i = s32[] parameter(2)
  %row = f32[1,8] bitcast(%p1)
  ROOT %put = f32[6,8] dynamic-update-slice(%p0, %row, %i, %i)
}

%one_row (q0: f32[6,8], j: s32[]) -> f32[1,8] {
  %q0 = f32[6,8] parameter(0)
  %j = s32[] parameter(1)
  %renamed = f32[6,8] bitcast(%q0)
  ROOT %get = f32[1,8] dynamic-slice(%renamed, %j, %j), dynamic_slice_sizes={1,8}
}

ENTRY %main (a: f32[6,8], b: f32[8]) -> f32[6,8] {
  %a = f32[6,8] parameter(0)
  %b = f32[8] parameter(1)
  %k = s32[]{:S(6)} constant(3)
  INSTRUCTION
}
"""


@pytest.mark.parametrize(
    ("instruction", "moved"),
    [
        ("ROOT %x = f32[6,8] fusion(%a, %b, %k), kind=kLoop, calls=%update", 32 + 32),
        ("ROOT %x = f32[1,8] fusion(%a, %k), kind=kLoop, calls=%one_row", 32 + 32),
        ("ROOT %x = f32[6,8] negate(%a)", 2 * 192),
        ("ROOT %x = f32[6,8]{1,0:T(8,128)S(1)} negate(%a)", 192),  # into the core's own memory
        ("ROOT %x = (f32[6,8], f32[6,8]{1,0:S(1)}, u32[]) copy-start(%a)", 192),
        ("ROOT %x = (f32[6,8], f32[1,8]{1,0:S(1)}, u32[]) slice-start(%a), slice={[0:1]}", 32),
        ("ROOT %x = f32[1,8] dynamic-slice(%a, %k, %k), dynamic_slice_sizes={1,8}", 32 + 32),
        ("ROOT %x = f32[48] bitcast(%a)", 0),
    ],
)  # fmt: skip
def test_bytes_of_main_memory(instruction, moved):
    assert work(hlo.parse(SLICED.replace("INSTRUCTION", instruction))).hbm_bytes == moved


LOOP = """
%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[8] get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %n = s32[] add(%i, %one)
  %y = f32[8] negate(%x), metadata={op_name="jit(step)/jvp(encoder)/mlp_in/neg"}, \
backend_config={"window_config":{"estimated_cycles":"100"}}
  ROOT %t = (s32[], f32[8]) tuple(%n, %y)
}

%cond (q: (s32[], f32[8])) -> pred[] {
  %q = (s32[], f32[8]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %most = s32[] constant(7)
  ROOT %lt = pred[] compare(%j, %most), direction=LT
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %s = (s32[], f32[8]) tuple(%zero, %a)
  %w = (s32[], f32[8]) while(%s), condition=%cond, body=%body
  %e = f32[8] get-tuple-element(%w), index=1
  ROOT %o = f32[8] broadcast(%e), backend_config={"window_config":{"estimated_cycles":"30"}}
}
"""


def test_cycles_are_summed_over_loops_and_given_to_parts():
    found = work(hlo.parse(LOOP))
    assert found.cycles == 730
    assert found.parts == {"forward mlp_in": 700, "unnamed broadcast": 30}


def test_what_a_loop_moves_counts_as_often_as_it_turns():
    """A turn negates 32 bytes to as many, adds two integers to a third, and compares two."""
    moved = [work(hlo.parse(LOOP.replace("constant(7)", f"constant({n})"))) for n in (7, 10)]
    assert moved[1].hbm_bytes - moved[0].hbm_bytes == 3 * (2 * 32 + 3 * 4 + 2 * 4 + 1)
    assert moved[0].hbm_bytes == 7 * 85 + 2 * 32


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("jit(step)/jvp(encoder)/encoder.encode/stack/layer_11/attention/Dropout_0/ge",
         "forward attention/Dropout"),
        ("jit(step)/transpose(jvp(encoder))/encoder.encode/stack/while/body/closed_call/layers/"
         "mlp_out/dot_general", "backward mlp_out"),
        ("jit(step)/jvp()/shard_map/mlm/dot_general", "forward mlm"),
        ("jit(step)/sub", "update"),
    ],
)  # fmt: skip
def test_parts_of_the_model(source, named):
    assert part(source, "fusion") == named
