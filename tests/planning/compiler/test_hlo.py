"""What a compiled program sends: kinds, bytes, axes and how often, against arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from firth.planning.compiler import hlo
from firth.training.partition import create_mesh

MESH = dict(data=4, fsdp=1, tensor=2)
ROWS, WIDTH, TURNS = 64, 16, 7
LOCAL = ROWS // 4 * WIDTH * 4  # bytes of a device's part of a float32 [ROWS, WIDTH] over data


def shard_mapped(function, outputs):
    """HLO of a function of a [ROWS, WIDTH] array that is cut over data."""
    mesh = create_mesh(MESH)
    mapped = jax.shard_map(
        function, mesh=mesh, in_specs=P("data"), out_specs=outputs, check_vma=False
    )
    return jax.jit(mapped).lower(jax.ShapeDtypeStruct((ROWS, WIDTH), "float32")).compile().as_text()


def sent(text):
    return hlo.collectives(text, MESH)


@pytest.mark.parametrize(
    ("function", "kind", "size", "axes", "group"),
    [
        (lambda x: lax.psum(x, "data"), "all-reduce", LOCAL, ("data",), 4),
        (lambda x: lax.psum(x, ("data", "tensor")), "all-reduce", LOCAL, ("data", "tensor"), 8),
        (lambda x: lax.all_gather(x, "tensor"), "all-gather", 2 * LOCAL, ("tensor",), 2),
        (
            lambda x: lax.psum_scatter(x, "data", tiled=True),
            "reduce-scatter",
            LOCAL,
            ("data",),
            4,
        ),
        (lambda x: lax.all_to_all(x, "data", 0, 0, tiled=True), "all-to-all", LOCAL, ("data",), 4),
        (
            lambda x: lax.ppermute(x, "data", [(i, (i + 1) % 4) for i in range(4)]),
            "collective-permute",
            LOCAL,
            ("data",),
            2,
        ),
    ],
)
def test_every_kind_has_its_bytes_and_axes(function, kind, size, axes, group):
    (one,) = sent(shard_mapped(function, P()))
    assert (one.kind, one.bytes, one.axes, one.group, one.times) == (kind, size, axes, group, 1)
    assert one.dtype == "f32"


def test_loops_count_as_often_as_they_turn():
    def nested(x):
        def outer(x, _):
            x, _ = lax.scan(lambda x, _: (lax.psum(jnp.sin(x), "tensor"), None), x, length=3)
            return lax.psum(x, "data") * 0.5, None

        return lax.scan(outer, x, length=TURNS)[0]

    text = shard_mapped(nested, P("data"))
    assert {one.axes: one.times for one in sent(text)} == {("tensor",): 3 * TURNS, ("data",): TURNS}
    assert hlo.unknown_loops(hlo.parse(text)) == []


def test_a_data_parallel_gradient_reduces_every_parameter_once():
    mesh = create_mesh(dict(data=8, fsdp=1, tensor=1))
    params = {
        "w": jax.ShapeDtypeStruct((48, 32), "float32"),
        "b": jax.ShapeDtypeStruct((32,), "float32"),
    }
    x = jax.ShapeDtypeStruct((64, 48), "float32")

    def loss(params, x):
        return jnp.sum(jnp.tanh(x @ params["w"] + params["b"]))

    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P(("data", "fsdp")))
    step = jax.jit(jax.grad(loss), in_shardings=(whole, rows), out_shardings=whole)
    found = hlo.collectives(step.lower(params, x).compile().as_text(), mesh.shape)
    assert {(one.kind, one.axes) for one in found} == {("all-reduce", ("data",))}
    assert hlo.totals(found)["all-reduce", ("data",)][1] == 4 * (48 * 32 + 32)


def test_a_ring_sends_what_it_must():
    def of(kind, group):
        return hlo.Collective(kind, 800, ("data",), group, 3, "f32", False, "").sent

    assert of("all-reduce", 8) == 2 * of("all-gather", 8) == 2 * of("reduce-scatter", 8) == 4200
    assert of("collective-permute", 2) == 2400


# ------------------------------------------------------------- what only other compilers write

TPU = """HloModule step

%body (p: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {
  %p = (s32[]{:T(128)}, f32[8]{0:T(128)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %i.copy = s32[]{:T(128)S(6)} copy(%i)
  %by = s32[] get-tuple-element(%p), index=2
  %next = s32[]{:T(128)} add(%i.copy, %by)
  %x = f32[8]{0:T(128)} get-tuple-element(%p), index=1
  %sum = f32[8]{0:T(128)S(1)} all-reduce(%x), channel_id=1, replica_groups=GROUPS, to_apply=%add
  ROOT %t = (s32[], f32[8], s32[]) tuple(%next, %sum, %by)
}

%condition (q: (s32[], f32[8], s32[])) -> pred[] {
  %limit = s32[] constant(9)
  %q = (s32[], f32[8], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  ROOT %lt = pred[] compare(%j, %limit), direction=LT
}

%all-reduce-scatter.1 (y: f32[8]) -> f32[2] {
  %y = f32[8]{0:T(128)} parameter(0)
  %whole = f32[8]{0:T(128)} all-reduce(%y), channel_id=3, replica_groups=GROUPS, to_apply=%add
  ROOT %slice = f32[2] dynamic-slice(%whole, %n), dynamic_slice_sizes={2}
}

%begin (z: f32[8]) -> (f32[8], f32[32]) {
  %z = f32[8] parameter(0)
  %g = f32[32] all-gather(%z), channel_id=7, replica_groups=GROUPS, dimensions={0}, \
backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %c = (f32[8], f32[32]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%go_on (u: f32[8]) -> f32[32] {
  %u = f32[8] parameter(0)
  ROOT %h = f32[32] all-gather(%u), channel_id=7, replica_groups=GROUPS, dimensions={0}, \
backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
}

ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0:T(128)} parameter(0)
  %one = s32[] constant(1)
  %two = s32[] constant(2)
  %start = (s32[], f32[8], s32[]) tuple(%one, %a, %two)
  %loop = (s32[], f32[8], s32[]) while(%start), condition=%condition, body=%body
  %scattered = f32[2] fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1
  %opened = (f32[8], f32[32]) fusion(%a), kind=kCustom, calls=%begin
  %meanwhile = f32[32] fusion(%a), kind=kOutput, calls=%go_on
  %done = f32[32] fusion(%a), kind=kCustom, calls=%go_on
  %sent = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%a), channel_id=9, \
source_target_pairs={{0,2},{2,4},{4,6},{6,0}}
  %arrived = f32[8] collective-permute-done(%sent)
  ROOT %out = f32[8] get-tuple-element(%loop), index=1
}
"""


def test_the_forms_of_the_tpu_compiler():
    found = sent(TPU.replace("GROUPS", "{{0,2,4,6},{1,3,5,7}}"))
    seen = [(one.kind, one.bytes, one.group, one.times, one.asynchronous) for one in found]
    assert seen == [
        ("collective-permute", 32, 2, 1, True),
        ("all-reduce", 32, 4, 4, False),  # 1, 3, 5, 7 of a counter below 9
        ("reduce-scatter", 32, 4, 1, False),  # an all-reduce of which a fusion keeps a slice
        ("all-gather", 128, 4, 1, True),  # three fusions of one collective under way
    ]
    assert {one.axes for one in found} == {("data",)}


def test_a_loop_without_a_known_count_is_named():
    text = TPU.replace("constant(9)", "parameter(1)")
    assert hlo.unknown_loops(hlo.parse(text)) == ["main/loop"]


@pytest.mark.parametrize(
    "written",
    [
        "{{0,2,4,6},{1,3,5,7}}",
        "[2,4]<=[4,2]T(1,0)",
        "mesh['x'=4,'y'=2] {'x'}",
        "mesh['x'=2,'y'=2,'z'=2] {'x','y'}",
        "mesh['x'=8] {'x':(1)4}",
        "mesh['x'=2,'y'=4], device_ids=([8]<=[4,2]T(1,0)) {'y'}",
    ],
)
def test_every_way_of_writing_groups(written):
    groups = hlo.read_groups(f"replica_groups={written}, dimensions={{0}}", 8)
    np.testing.assert_array_equal(groups, [[0, 2, 4, 6], [1, 3, 5, 7]])


def test_groups_along_the_inner_part_of_an_axis_and_of_all():
    inner = hlo.read_groups("replica_groups=mesh['x'=8] {'x':(4)2}", 8)
    np.testing.assert_array_equal(inner, [[0, 1], [2, 3], [4, 5], [6, 7]])
    np.testing.assert_array_equal(hlo.read_groups("channel_id=1", 4), [[0, 1, 2, 3]])


def test_a_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("module @jit_f {}")


def test_elements_below_a_byte_count_their_bits():
    sizes = {"s4[16]": 8, "pred[3]": 3, "bf16[5]": 10, "(f32[2,3], u8[7], token[])": 31}
    assert {kind: hlo.size(kind) for kind in sizes} == sizes


def test_a_group_of_one_sends_nothing():
    alone = TPU.replace("GROUPS", "{{0},{1},{2},{3},{4},{5},{6},{7}}")
    assert {one.kind for one in sent(alone)} == {"collective-permute"}
