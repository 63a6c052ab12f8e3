"""Costs as Strubell, Ganesh and McCallum (2019) estimate them, and their comparisons.

They measured the power of GPUs, CPU and memory together, multiply it by 1.58 for the data centre
(PUE), and take 0.954 lb of CO2e a kWh, the average of the United States. They print rounded hours:
79 for the 3.3 days (79.2 hours) of BERT-base.
"""

from typing import NamedTuple

PUE, POUNDS_PER_KWH, KG_PER_POUND = 1.58, 0.954, 0.45359237

# Table 1, CO2e in lb.
COMPARED = {
    "flights New York - San Francisco": 1_984,
    "years of a human life": 11_023,
    "years of an American life": 36_156,
    "cars with their fuel": 126_000,
}


class Trained(NamedTuple):
    """A row of table 3: chips of a kind for so many hours; None where they give no figure.

    `kwh` includes the PUE, `pounds` are of CO2e, `usd` the range from preemptible to on demand.
    """

    model: str
    hardware: str
    chips: int
    watts: float | None
    hours: float
    kwh: int | None
    pounds: int | None
    usd: tuple[int, int]


TABLE = (
    Trained("Transformer base", "P100", 8, 1415.78, 12, 27, 26, (41, 140)),
    Trained("Transformer big", "P100", 8, 1515.43, 84, 201, 192, (289, 981)),
    Trained("ELMo", "P100", 3, 517.66, 336, 275, 262, (433, 1_472)),
    Trained("BERT base", "V100", 64, 12_041.51, 79.2, 1_507, 1_438, (3_751, 12_571)),
    Trained("BERT base", "TPU v2", 16, None, 96, None, None, (2_074, 6_912)),
    Trained("architecture search", "P100", 8, 1515.43, 274_120, 656_347, 626_155,
            (942_973, 3_201_722)),
    Trained("GPT-2", "TPU v3", 32, None, 168, None, None, (12_902, 43_008)),
)  # fmt: skip
RATES = {  # USD an hour and device that give their costs: preemptible, on demand
    "P100": (0.43, 1.46),
    "V100": (0.74, 2.48),
    "TPU v2": (1.35, 4.50),  # of a device of four chips, though they count chips
    "TPU v3": (2.40, 8.00),
}


class Developed(NamedTuple):
    """A row of table 4, the development of an NLP pipeline: models trained, and electricity.

    The first row is one training, the last all of the project ("with tuning and experiments").
    """

    models: int
    hours: int
    electricity_usd: int


USD_PER_KWH = 0.12
PROJECT = (Developed(1, 120, 5), Developed(24, 2_880, 118), Developed(4_789, 239_942, 9_870))
PIPELINE = {"pipeline": 39, "with tuning and experiments": 78_468}  # lb CO2e, table 1
