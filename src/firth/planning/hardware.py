"""Accelerators for plans, with the figures of their makers.

Sources. TPU: cloud.google.com/tpu/docs/{v2,v3,v4,v5e,v5p,v6e} for arithmetic, memory and sizes;
links of v2 and v3 from Jouppi et al. 2020 ("A domain-specific supercomputer for training deep
neural networks", 496 and 656 Gbit/s), of v4 from jax-ml/scaling-book, of the later ones from the
documentation's two-way figure a chip divided by its ports and directions. GPU: NVIDIA's data
sheets (SXM versions, dense arithmetic, NVLink counted in one direction, memory as its stacks have
it: their 80 GB are 80 GiB, of which a driver keeps about one).

Watts and prices are assumptions, and every plan prints them. Watts are a chip's own: measured
means where Google publishes them (v3, v4), the thermal design power for v2 and GPUs, and guesses
for v5e, v5p and v6e, whose power is unpublished. Prices are lists for one chip-hour on
demand in the United States without any discount (Google Cloud for TPUs and the P100, AWS for the
other GPUs, whole machines divided by their GPUs), as of PRICES_AS_OF; they change, `--usd` sets
them.
"""

import dataclasses
import math

from firth.errors import FirthError
from firth.recipe import suggest

PRICES_AS_OF = "mid 2025"
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator as its maker describes it.

    `flops`: peak dense FLOP/s in bfloat16 (float16 where a GPU has no bfloat16), `fp32_flops` in
    float32 outside the matrix units, None where it is not published. `hbm`: bytes of memory,
    `hbm_bandwidth`: bytes/s. `link`: bytes/s over one axis of the interconnect in one direction
    (a GPU's NVLink is one axis). `torus`: the largest slice, chips an axis (a GPU's: the machine).
    `watts`: power of one chip, and `watts_are` the source of that. `usd`: one chip-hour on demand.
    `topology`: its name in jax.experimental.topologies, None where that does not describe it.
    `accelerator`: prefix of Cloud TPU's accelerator types, which count `cores` a chip.
    `flops_are`: what `flops` means, where it is another figure.
    """

    name: str
    flops: float
    fp32_flops: float | None
    hbm: int
    hbm_bandwidth: float
    link: float
    torus: tuple[int, ...]
    watts: float
    watts_are: str
    usd: float
    topology: str | None = None
    accelerator: str | None = None
    cores: int = 1
    flops_are: str = "peak of bfloat16 or float16"

    def accelerator_type(self, chips: int) -> str | None:
        """Cloud TPU's name of a slice of so many chips: 'v5litepod-256', 'v4-8'; None for a GPU."""
        return self.accelerator and f"{self.accelerator}-{chips * self.cores}"

    @property
    def largest(self) -> int:
        """Chips in the largest slice; a GPU's machine."""
        return math.prod(self.torus)


TDP, MEASURED, GUESS = "thermal design power", "mean measured by the maker", "unpublished: a guess"
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v2", 45e12, None, 16 * GIB, 700e9, 62e9, (16, 16), 280, TDP, 1.125,
             "v2", "v2", 2),
        Chip("v3", 123e12, None, 32 * GIB, 900e9, 82e9, (32, 32), 220, MEASURED, 2.0,
             "v3", "v3", 2),
        Chip("v4", 275e12, None, 32 * GIB, 1.2e12, 45e9, (16, 16, 16), 170, MEASURED, 3.22,
             "v4", "v4", 2),
        Chip("v5e", 197e12, None, 16 * GIB, 819e9, 50e9, (16, 16), 200, GUESS, 1.2,
             "v5e", "v5litepod"),
        Chip("v5p", 459e12, None, 95 * GIB, 2.765e12, 100e9, (16, 16, 24), 450, GUESS, 4.2,
             "v5p", "v5p", 2),
        Chip("v6e", 918e12, None, 32 * GIB, 1.638e12, 100e9, (16, 16), 350, GUESS, 2.7,
             "v6e", "v6e"),
        Chip("p100", 21.2e12, 10.6e12, 16 * GIB, 732e9, 80e9, (8,), 300, TDP, 1.46),
        Chip("v100", 125e12, 15.7e12, 16 * GIB, 900e9, 150e9, (8,), 300, TDP, 3.06),
        Chip("a100-40", 312e12, 19.5e12, 40 * GIB, 1.555e12, 300e9, (8,), 400, TDP, 2.75),
        Chip("a100-80", 312e12, 19.5e12, 80 * GIB, 2.039e12, 300e9, (8,), 400, TDP, 3.43),
        Chip("h100", 989e12, 67e12, 80 * GIB, 3.35e12, 450e9, (8,), 700, TDP, 6.88),
        Chip("h200", 989e12, 67e12, 141 * GIB, 4.8e12, 450e9, (8,), 700, TDP, 7.91),
        Chip("laptop", 0.4e12, 0.4e12, 16 * GIB, 60e9, 0, (1,), 30, "a guess", 0.0,
             flops_are="float32 on the CPU, a guess; --chips here measures it"),
    )
}  # fmt: skip
OTHER_NAMES = {"cpu": "laptop"}


def find_chip(name: str, known: dict[str, Chip] = CHIPS) -> Chip:
    """The chip of a name; raises FirthError, with the nearest name, for an unknown one."""
    chip = known.get(OTHER_NAMES.get(name.lower(), name.lower()))
    if chip is None:
        raise FirthError(f"no chip {name!r}{suggest(name.lower(), known)}")
    return chip


def parse_chips(text: str, known: dict[str, Chip] = CHIPS) -> tuple[Chip, int]:
    """'v5e:256' or 'v5e:16x16' to the chip and how many; one where no number is given."""
    name, _, count = text.partition(":")
    chip = find_chip(name, known)
    try:
        number = math.prod(int(side) for side in count.split("x")) if count else 1
    except ValueError:
        number = 0
    if number < 1:
        raise FirthError(f"--chips={text!r}: write a chip and how many, v5e:256 or v5e:16x16")
    return chip, number
