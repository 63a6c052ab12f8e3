"""From arithmetic to time, money, energy and emissions; plans state all assumptions."""

import dataclasses

from firth.planning.hardware import PRICES_AS_OF, Chip
from firth.planning.papers.strubell import COMPARED, KG_PER_POUND


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Factors from FLOPs to costs.

    mfu: the model's own FLOP/s over the peak. pue: energy of the data centre over that of its
    machines (1.1: large clouds; Google reports 1.09 for 2024). kg_per_kwh: CO2e of the grid
    (0.375: United States, EPA eGRID 2022). watts, usd: of a chip, and of an hour of it;
    None for the figure of `planning.hardware`.
    """

    mfu: float = 0.4
    pue: float = 1.1
    kg_per_kwh: float = 0.375
    watts: float | None = None
    usd: float | None = None


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one run: elapsed hours, chip-hours, USD, kWh with the data centre's share, kg of CO2e."""

    hours: float
    chip_hours: float
    usd: float
    kwh: float
    kg: float


def estimate(flops: float, chip: Chip, chips: int, assumed: Assumptions) -> Cost:
    """The cost of so many FLOPs on so many chips."""
    hours = flops / (chips * chip.flops * assumed.mfu) / 3600
    watts = chip.watts if assumed.watts is None else assumed.watts
    usd = chip.usd if assumed.usd is None else assumed.usd
    return of_hours(hours, chips, watts, usd, assumed.pue, assumed.kg_per_kwh)


def of_hours(
    hours: float, chips: int, watts: float, usd: float, pue: float, kg_per_kwh: float
) -> Cost:
    """The cost of so many hours of chips that draw `watts` and cost `usd` an hour, each.

    As Strubell et al. (2019), section 2: energy is power times time times the PUE.
    """
    kwh = hours * chips * watts / 1000 * pue
    return Cost(hours, hours * chips, hours * chips * usd, kwh, kwh * kg_per_kwh)


def stated(chip: Chip, assumed: Assumptions) -> list[str]:
    """The assumptions in words."""
    watts = f"{chip.watts:g} W a chip ({chip.watts_are}; hosts and network not counted)"
    if assumed.watts is not None:
        watts = f"{assumed.watts:g} W a chip (given)"
    usd = f"{chip.usd:g} USD a chip-hour (list price on demand, {PRICES_AS_OF})"
    if not chip.usd:
        usd = "no price: your own machine"
    if assumed.usd is not None:
        usd = f"{assumed.usd:g} USD a chip-hour (given)"
    peak = f"{assumed.mfu:.0%} of {chip.flops / 1e12:g} TFLOP/s ({chip.flops_are})"
    return [peak, watts, usd, f"PUE {assumed.pue:g}", f"{assumed.kg_per_kwh:g} kg CO2e a kWh"]


def comparison(kg: float) -> str:
    """The emissions in units of Strubell et al.: the largest unit below them, at least flights.

    "2.1 flights New York - San Francisco"
    """
    pounds = kg / KG_PER_POUND
    smaller = [(name, size) for name, size in COMPARED.items() if pounds >= size]
    name, size = smaller[-1] if smaller else next(iter(COMPARED.items()))
    return f"{pounds / size:.2g} {name}"
