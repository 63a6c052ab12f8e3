"""Steps compiled for described TPUs: what is asked of the compiler, searched and said.

The compiler itself runs in the slow test, which needs libtpu; the searches run on made reports.
"""

import json

import jax
import pytest

from firth import recipe
from firth.errors import FirthError
from firth.planning import flops, memory
from firth.planning.compiler import compiled, topology
from firth.run.outline import outline

WHERE = topology.parse("v5e:2x2")
GIB = compiled.GIB


def tiny(**changes):
    config = recipe.read_recipe("bert.py:tiny")
    return recipe.with_fields(config, {"batch_size": 32} | changes)


def made(config, *, fixed, a_row, hbm=16 * GIB, seconds=1.0):
    """The report of a step whose memory is affine in its rows."""
    rows = config.batch_size / WHERE.chips
    total = fixed + a_row * rows
    found = {"rows_a_chip": rows, "fits": total <= hbm, "mesh": dict(config.mesh)}
    if not found["fits"]:
        return found | {"over": total - hbm}
    return found | {
        "memory": {"total": total, "hbm": hbm},
        "seconds": {"step": seconds},
        "mfu": 0.5,
    }


def test_what_the_command_sets_stays_set(monkeypatch):
    seen = []

    def stub(config, where):
        seen.append((config.model.dtype, config.model.scan, config.model.remat))
        return {"fits": True}

    monkeypatch.setattr(compiled, "compile_report", stub)
    compiled.report(tiny(), ["v5e:2x2"])
    found = compiled.report(tiny(), ["v5e:2x2"], given=["--config.model.scan=False"])
    assert found["v5e:2x2"]["set"] == {"model.dtype": "bfloat16", "model.fused_attention": "True"}
    compiled.report(tiny(**{"model.remat": "dots"}), ["v5e:2x2"], given=["model.remat"])
    scanned, unrolled, own = seen
    assert scanned == ("bfloat16", True, "all_dots")
    assert unrolled == ("bfloat16", False, "none")
    assert own == ("bfloat16", True, "dots")


@pytest.mark.parametrize(
    "name",
    ["lstm.py:tiny,tokens=9999", "feedforward.py:tiny", "gpt2.py:tiny", "modernbert.py:base"],
)
def test_only_layers_that_can_be_a_loop_are_one(monkeypatch, name):
    """ModernBERT's can, but not with the kernels that the report assumes."""
    seen = []

    def stub(config, where):
        outline(config)
        seen.append((config.model.scan, config.model.remat))
        return {"fits": True}

    monkeypatch.setattr(compiled, "compile_report", stub)
    compiled.report(recipe.read_recipe(name), ["v5e:1x1"])
    assert seen == [(True, "all_dots") if "gpt2" in name else (False, "none")]


def test_no_slice_is_compiled_before_all_are_read(monkeypatch):
    monkeypatch.setattr(compiled, "compile_report", lambda *_: pytest.fail("compiled"))
    with pytest.raises(FirthError, match="no such slice"):
        compiled.report(tiny(), ["v5e:2x2", "v5e:3x3"])


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (40.25G) exceeds available HBM (15.75G). HLO module: jit_f.",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 40.25G of 15.75G hbm. "
        "Exceeded hbm capacity by 24.50G.",
    ],
)
def test_the_compilers_words_for_too_little_memory(message):
    error = compiled.out_of_memory(message, WHERE)
    assert isinstance(error, compiled.TooLargeError)
    assert (error.needed / GIB, error.available / GIB) == (40.25, 15.75)
    assert "24.5 GiB too much" in str(error)


def test_the_largest_batch_is_found_in_three_compilations(monkeypatch):
    rows = []

    def stub(config, where):
        rows.append(config.batch_size // WHERE.chips)
        return made(config, fixed=1 * GIB, a_row=GIB // 8)

    monkeypatch.setattr(compiled, "compile_report", stub)
    found = compiled.largest_batch(tiny(), WHERE, stub(tiny(), WHERE))
    assert found["rows_a_chip"] == int((16 * 0.98 - 1) * 8) == rows[-1]
    assert len(rows) == 3


@pytest.mark.parametrize(("room", "most"), [(16 * GIB, 15), (2 * GIB, 1)])
def test_the_largest_batch_from_a_single_row(room, most, monkeypatch):
    def stub(config, where):
        return made(config, fixed=GIB // 2, a_row=GIB, hbm=room)

    monkeypatch.setattr(compiled, "compile_report", stub)
    monkeypatch.setattr(compiled, "LARGEST", ("rows_a_chip",))
    one = tiny(batch_size=WHERE.chips)
    assert compiled.largest_batch(one, WHERE, stub(one, WHERE)) == {"rows_a_chip": most}


def test_a_batch_that_grows_more_than_affinely_backs_off(monkeypatch):
    def stub(config, where):
        rows = config.batch_size / WHERE.chips
        return made(config, fixed=1 * GIB + GIB // 256 * rows**2, a_row=GIB // 8)

    monkeypatch.setattr(compiled, "compile_report", stub)
    found = compiled.largest_batch(tiny(), WHERE, stub(tiny(), WHERE))
    most = max(r for r in range(1, 100) if 1 + r * r / 256 + r / 8 <= 16)
    assert 0.85 * most <= found["rows_a_chip"] <= most


def test_the_first_remedy_that_fits_is_told_and_given_fields_are_left(monkeypatch):
    asked = []

    def stub(config, where):
        asked.append((config.model.remat, config.accumulate))
        return made(config, fixed=GIB, a_row=5 * GIB if config.accumulate == 1 else GIB)

    monkeypatch.setattr(compiled, "compile_report", stub)
    found = compiled.first_remedy(tiny(), WHERE, set())
    assert found["changes"] == {"model.remat": "full", "accumulate": 4}
    assert asked == [("all_dots", 1), ("dots", 1), ("full", 1), ("full", 4)]
    assert compiled.first_remedy(tiny(), WHERE, {"model.remat"}) is None
    asked.clear()
    compiled.first_remedy(tiny(**{"model.remat": "all_dots"}), WHERE, set())
    assert asked == [("dots", 1), ("full", 1), ("full", 4)]  # not again what did not fit


def test_mesh_auto_takes_the_fastest_split_that_fits(monkeypatch):
    def stub(config, where):
        mesh = config.mesh
        seconds = {(4, 1): 1.0, (1, 1): 2.0, (1, 2): 3.0}[mesh.fsdp, mesh.tensor]
        fixed = 20 * GIB if (mesh.fsdp, mesh.tensor) == (4, 1) else GIB
        return made(config, fixed=fixed, a_row=0, seconds=seconds)

    monkeypatch.setattr(compiled, "compile_report", stub)
    best = compiled.fastest(tiny(), WHERE)
    assert (best["mesh"]["data"], best["seconds"]["step"]) == (4, 2.0)
    assert [s["fits"] for s in best["splits"]] == [True, False, True]
    headless = recipe.with_fields(recipe.read_recipe("feedforward.py:tiny"), {"batch_size": 8})
    splits = compiled.fastest(headless, WHERE)["splits"]  # no heads are divided
    assert {split["tensor"] for split in splits} == {1}


def test_splits_divide_chips_and_heads():
    assert compiled.candidates(256, 12) == [(1, 1), (8, 1), (256, 1), (1, 2), (1, 4)]
    assert compiled.candidates(4, 2) == [(1, 1), (4, 1), (1, 2)]
    assert compiled.candidates(1, 2) == [(1, 1)]


@pytest.mark.slow
@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("scan", [True, False], ids=["scanned", "last layer at masked places"])
def test_a_tiny_recipe_compiled_for_four_chips(scan):
    """FLOPs are those of the formula, what is reduced is what is trained, no more is sent."""
    config = tiny(**{"model.scan": scan})
    given = ["model.scan"] if scan else ["model.scan", "model.fused_attention"]
    found = compiled.report(config, ["v5e:2x2"], given=given)["v5e:2x2"]
    program = memory.laid_out(outline(config), WHERE.chips)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.state.params))
    assert found["flops"] == sum(flops.update_flops(outline(config)).values()) / WHERE.chips
    (sent,) = found["collectives"]
    assert (sent["kind"], sent["axes"]) == ("all-reduce", ["data"])
    # The metrics too, but of 512 positions only the 128 that a row has: within a hundredth.
    assert sent["bytes"] == pytest.approx(4 * parameters, rel=0.01)
    assert found["fits"]
    assert found["unknown_loops"] == []
    assert found["seconds"]["step"] >= found["seconds"]["least"] > 0
    json.dumps(found)
    assert "predicted" in "\n".join(compiled.lines("tiny", {"v5e:2x2": found}))
