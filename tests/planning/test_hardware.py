"""The table of chips and how they are named."""

import pytest

from firth.errors import FirthError
from firth.planning.hardware import CHIPS, find_chip, parse_chips


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [("v5e:256", "v5e", 256), ("v5p:4x4x8", "v5p", 128), ("H100", "h100", 1), ("v6e:1", "v6e", 1)],
)
def test_chips_and_how_many(text, name, count):
    chip, found = parse_chips(text)
    assert (chip.name, found) == (name, count)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("v5", "no chip 'v5'; did you mean 'v5"),
        ("cerebras:4", "it knows a100-40, a100-80, h100"),
        ("v5e:0", "v5e:256 or v5e:16x16"),
        ("v5e:-4", "v5e:256 or v5e:16x16"),
        ("v5e:4y4", "v5e:256 or v5e:16x16"),
        ("v5e:", None),
    ],
)
def test_other_names(text, wrong):
    if wrong is None:
        assert parse_chips(text)[1] == 1
        return
    with pytest.raises(FirthError, match=wrong):
        parse_chips(text)


def test_names_of_slices():
    """As Cloud TPU has them: by cores up to v5p, except v5e, by chips since."""
    names = {
        name: find_chip(name).accelerator_type(4) for name in ("v3", "v4", "v5e", "v5p", "v6e")
    }
    assert names == dict(v3="v3-8", v4="v4-8", v5e="v5litepod-4", v5p="v5p-8", v6e="v6e-4")
    assert find_chip("h100").accelerator_type(8) is None
    assert find_chip("v5e").largest == 256


def test_figures_have_sensible_sizes():
    """A misplaced exponent would be out of these bounds."""
    for chip in CHIPS.values():
        if chip.name == "laptop":  # a CPU: see test_here
            continue
        assert 1e13 < chip.flops < 1e16
        assert 5e11 < chip.hbm_bandwidth < 1e13 and 1e10 < chip.link < 1e12
        assert 10 < chip.flops / chip.hbm_bandwidth < 700  # FLOPs a byte at balance
        assert 2**33 < chip.hbm < 2**38 and 100 <= chip.watts <= 1000 and 0.5 < chip.usd < 20
