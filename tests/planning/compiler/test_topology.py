"""Slices of pods: how they are written, which there are, and that libtpu may be absent."""

import pytest

from firth.errors import FirthError
from firth.planning.compiler import topology


@pytest.mark.parametrize(
    ("text", "chips", "slices"),
    [
        ("v5e:16x16", 256, 1),
        ("v5e:1x1", 1, 1),
        ("2*v5e:16x16", 512, 2),
        ("v4:2x2x1", 4, 1),
        ("v5p:8x8x8", 512, 1),
        ("v5p:4x4x12", 192, 1),
        ("v6e:8x16", 128, 1),
    ],
)
def test_slices_are_read_and_written(text, chips, slices):
    found = topology.parse(text)
    assert (found.chips, found.slices, found.name) == (chips, slices, text)


@pytest.mark.parametrize(
    "text", ["v5e:3x5", "v5e:32x32", "v5e:16", "v4:3x4x4", "v5p:16x16x28", "v6e:4x4x4", "0*v5e:4x4"]
)
def test_a_slice_that_does_not_exist_names_those_that_do(text):
    with pytest.raises(FirthError, match=r"no such slice; v[456][ep]?: ") as error:
        topology.parse(text)
    assert ("2x2x1" if "v4" in text or "v5p" in text else "8x16") in str(error.value)


@pytest.mark.parametrize("text", ["", "v5e", "v5e:", "x*v5e:4x4", "v5e:4x"])
def test_what_is_no_slice_is_explained(text):
    with pytest.raises(FirthError, match=r"write a chip and the shape.*v4: .*v6e: "):
        topology.parse(text)


@pytest.mark.parametrize("text", ["h100:8", "v3:4x4"])
def test_other_chips_are_refused(text):
    with pytest.raises(FirthError, match="TPU v4 and later; v4: "):
        topology.parse(text)


def test_rings_close_where_the_links_go_round():
    assert topology.parse("v5e:16x16").ring(0)
    assert not topology.parse("v5e:8x16").ring(0)
    assert topology.parse("v5e:8x16").ring(1)
    assert topology.parse("v4:4x4x8").ring(2)
    assert not topology.parse("v4:2x2x4").ring(0)


def test_without_libtpu_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FirthError, match=r"pip install 'firth\[tpu\]'"):
        topology.devices(topology.parse("v5e:2x2"))
