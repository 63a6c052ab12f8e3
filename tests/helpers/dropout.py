"""Where dropout falls: the masks that Firth used, and the same ones for torch.

A site is one mask: the share that is dropped, and the shape of what it falls on.
"""

import collections
import contextlib

import numpy as np
import pytest

from firth.layers import dropout

# Multiples of 2**-16, so that both sides scale by the same number; different, so that they tell
# sites of one shape apart.
RATES = dict(dropout=1 / 8, attention_dropout=1 / 4, classifier_dropout=3 / 8)
EMBEDDING = 1 / 16


@contextlib.contextmanager
def recorded(batch=0, seed=0):
    """Give Firth masks of numpy's instead of its own, which compiles faster.

    Yields the list of (rate, bool array) to which each is added. Where the rows of the `batch` are
    told, those masks alone whose first axis they are must be drawn as rows.
    """
    found, rng = [], np.random.default_rng(seed)

    def given(key, rate, shape, rows=True):
        del key
        assert not batch or rows == (shape[0] == batch), f"rows={rows} for a mask {shape}"
        found.append((rate, rng.random(shape) >= rate))
        return found[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dropout, "keep_mask", given)
        yield found


def sites(found) -> list:
    """The (rate, shape) of all masks, sorted."""
    return sorted((rate, mask.shape) for rate, mask in found)


@contextlib.contextmanager
def dropped_as(found):
    """In torch, drop what the masks that were `recorded` say.

    Of several of one rate and shape the first is used first. Yields the list of (rate, shape) that
    torch came to; where no mask is left for one, nothing is dropped there.
    """
    import torch

    left, used = collections.defaultdict(list), []
    for rate, mask in found:
        left[rate, mask.shape].append(torch.tensor(mask))

    def spy(x, p=0.5, training=True, inplace=False):
        del inplace
        if not training or p == 0:
            return x
        site = p, tuple(x.shape)
        used.append(site)
        return x * left[site].pop(0) / (1 - p) if left[site] else x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "dropout", spy)
        yield used
