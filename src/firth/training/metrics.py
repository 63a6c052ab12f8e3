"""Metrics as (sum, weight) pairs, which become means only when they are written.

So micro-batches, devices, hosts and padding rows cannot bias a mean.
"""

import math


def add(total: dict, metrics: dict) -> dict:
    """Add {name: (sum, weight)} pairs on the host in double precision."""
    merged = dict(total)
    for name, (value, weight) in metrics.items():
        s, w = merged.get(name, (0.0, 0.0))
        merged[name] = (s + float(value), w + float(weight))
    return merged


def means(total: dict) -> dict[str, float]:
    """{name: sum / weight}; nan for a weight of zero (nothing was measured)."""
    return {name: s / w if w else math.nan for name, (s, w) in total.items()}
