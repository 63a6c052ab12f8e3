"""The time of a step against arithmetic on devices that are only named."""

from types import SimpleNamespace

import numpy as np
import pytest

from firth.planning.compiler import roofline, topology
from firth.planning.compiler.hlo import Collective
from firth.planning.compiler.work import Work

AXES = ("data", "fsdp", "tensor")


def mesh_of(text, sizes):
    """A mesh of a topology, its devices in the order of their coordinates."""
    where = topology.parse(text)
    places = [
        SimpleNamespace(coords=(*at, 0, 0)[:3], slice_index=number)
        for number in range(where.slices)
        for at in np.ndindex(*where.shape)
    ]
    devices = np.empty(len(places), object)
    devices[:] = places
    return where, SimpleNamespace(axis_names=AXES, devices=devices.reshape(sizes))


def sent(kind, axes, group, size=1e9, times=1, asynchronous=False):
    return Collective(kind, int(size), axes, group, times, "f32", asynchronous, "")


def test_a_ring_uses_both_directions_of_every_dimension():
    where, mesh = mesh_of("v5e:16x16", (256, 1, 1))
    took = roofline.seconds(sent("all-reduce", ("data",), 256), mesh, where)
    assert took == pytest.approx(2 * 255 / 256 * 1e9 / (4 * 50e9) + 2 * 16e-6)
    gathered = roofline.seconds(sent("all-gather", ("data",), 256, times=3), mesh, where)
    assert gathered == pytest.approx(3 * took / 2)


def test_part_of_a_ring_is_a_line():
    where, mesh = mesh_of("v5e:16x16", (64, 1, 4))
    assert roofline.spanned(("tensor",), mesh) == ({1: 4}, 1)
    took = roofline.seconds(sent("reduce-scatter", ("tensor",), 4), mesh, where)
    assert took == pytest.approx(3 / 4 * 1e9 / 50e9 + 3e-6)


def test_slices_exchange_only_what_each_chip_has_reduced():
    where, mesh = mesh_of("2*v5e:4x4", (32, 1, 1))
    assert roofline.spanned(("data",), mesh) == ({0: 4, 1: 4}, 2)
    took = roofline.seconds(sent("all-reduce", ("data",), 32), mesh, where)
    within = 2 * 15 / 16 * 1e9 / (2 * 50e9) + 2 * 6e-6
    assert took == pytest.approx(within + 1e9 / 16 * 2 * (1 / 2) / 3.1e9)


def test_the_largest_bound_is_named_and_exposed_communication_added():
    where, mesh = mesh_of("v5e:16x16", (256, 1, 1))
    open_, hidden = (sent("all-reduce", ("data",), 256, asynchronous=a) for a in (False, True))
    one = roofline.seconds(open_, mesh, where)

    def time(found, **work):
        done = Work(**(dict(flops=0, hbm_bytes=0, cycles=0, parts={}) | work))
        return roofline.step_time(done, found, mesh, where)

    second = time([open_, hidden], flops=197 * 10**12, hbm_bytes=1, cycles=1)
    assert (second.compute, second.bound) == (1.0, "compute")
    assert second.step == pytest.approx(1 + one)  # the asynchronous one is hidden
    assert time([], hbm_bytes=819 * 10**9).bound == "HBM"
    assert time([], cycles=3 * 10**9, flops=1).expected == pytest.approx(2.0)
    assert time([], cycles=3 * 10**9).bound == "core cycles"
    alone = time([open_, hidden], flops=1)
    assert alone.bound == "interconnect"
    assert alone.step == pytest.approx(2 * one, rel=1e-3)


def test_utilisation_counts_the_models_own_operations():
    where = topology.parse("v5e:16x16")
    assert roofline.utilisation(256 * 197e12, 2.0, where) == pytest.approx(0.5)


def test_the_roofline_is_what_a_step_takes_at_least():
    """Not what the compiler expects of its cores, and all that is sent, hidden or not."""
    times = dict(compute=2.0, memory=3.0, expected=9.0, sent=4.0, exposed=1.0)
    for bound in ("compute", "memory", "sent"):
        assert roofline.StepTime(**times | {bound: 5.0}).least == 5.0
    assert roofline.StepTime(**times).step == 10.0
