"""The tables of Strubell et al. (2019), rebuilt; and the sums of a plan."""

import pytest

from firth.planning.cost import Assumptions, comparison, estimate, of_hours, stated
from firth.planning.hardware import CHIPS
from firth.planning.papers.strubell import (
    COMPARED,
    KG_PER_POUND,
    PIPELINE,
    POUNDS_PER_KWH,
    PROJECT,
    PUE,
    RATES,
    TABLE,
    USD_PER_KWH,
)


def rebuilt(row, usd):
    """Power is that of the whole machine, so it is one 'chip'; the price is for each of them."""
    watts = (row.watts or 0) / row.chips
    return of_hours(row.hours, row.chips, watts, usd, PUE, POUNDS_PER_KWH * KG_PER_POUND)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.model} on {row.hardware}")
def test_energy_emissions_and_prices_of_strubell_et_al(row):
    cheapest, dearest = (rebuilt(row, usd) for usd in RATES[row.hardware])
    assert (round(cheapest.usd), round(dearest.usd)) == row.usd
    if row.watts:
        assert round(cheapest.kwh) == row.kwh
        assert round(cheapest.kg / KG_PER_POUND) == row.pounds


def test_the_pipeline_and_its_development():
    """Emissions follow from the electricity bill; one model is its share of the hours."""
    one, _, whole = PROJECT
    pounds = whole.electricity_usd / USD_PER_KWH * POUNDS_PER_KWH
    assert pounds == pytest.approx(PIPELINE["with tuning and experiments"], abs=5)
    assert round(pounds * one.hours / whole.hours) == PIPELINE["pipeline"]


@pytest.mark.parametrize(
    ("pounds", "expected"),
    [
        (192, "0.097 flights New York - San Francisco"),
        (1_984, "1 flights New York - San Francisco"),
        (78_468, "2.2 years of an American life"),
        (626_155, "5 cars with their fuel"),
    ],
)
def test_comparisons(pounds, expected):
    assert comparison(pounds * KG_PER_POUND) == expected
    assert list(COMPARED.values()) == [1_984, 11_023, 36_156, 126_000]


def test_costs_of_a_round_number():
    """4 chips at half of 197 TFLOP/s do 1.4184e18 FLOPs an hour."""
    assumed = Assumptions(mfu=0.5, pue=2.0, kg_per_kwh=0.25, watts=500, usd=3)
    cost = estimate(2 * 4 * 197e12 * 0.5 * 3600, CHIPS["v5e"], 4, assumed)
    assert cost.hours == pytest.approx(2)
    assert cost.chip_hours == pytest.approx(8)
    assert cost.usd == pytest.approx(24)
    assert cost.kwh == pytest.approx(8)  # 8 chip-hours of 500 W, twice
    assert cost.kg == pytest.approx(2)


def test_every_assumption_is_stated():
    words = " ".join(stated(CHIPS["v5e"], Assumptions()))
    assert all(part in words for part in ("40%", "200 W", "a guess", "1.2 USD", "PUE 1.1", "0.375"))
    given = " ".join(stated(CHIPS["v5e"], Assumptions(watts=1, usd=2)))
    assert given.count("(given)") == 2


def test_an_assumption_of_nothing_is_one():
    """Power and machines that cost nothing are not those of the list."""
    free = estimate(1e20, CHIPS["v5e"], 4, Assumptions(watts=0, usd=0))
    listed = estimate(1e20, CHIPS["v5e"], 4, Assumptions())
    assert free.usd == free.kwh == free.kg == 0 < min(listed.usd, listed.kwh, listed.kg)
