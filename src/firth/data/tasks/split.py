"""The splits of a task, with a dev split off train where there is none.

The dev split depends on the examples alone: every seed of training, and every later evaluation,
has the same. Examples with a text in common stay together, so that no text of dev is learned.
N examples, G groups of them.
"""

import dataclasses
import logging

import numpy as np

from firth.data.labels.multilabel import rarest_labels
from firth.data.permutation import derive_key, random_bits
from firth.data.tasks.load import load_split
from firth.data.tasks.task import Examples, Task
from firth.errors import FirthError

log = logging.getLogger("firth")

BINS = 10  # of scores, to have low and high ones in both splits
LARGEST = 0.5  # of all examples: a larger group cannot stay together


def load_splits(
    task: Task, directory: str | None = None, dev_fraction: float = 0.0
) -> dict[str, Examples]:
    """The examples of every split of a task; `dev` is split off train if the task has none.

    Args:
      task: from `firth.data.tasks.load.get_task`.
      directory: as for `load_split`.
      dev_fraction: the part of train for that dev split, of each label.

    Raises:
      FirthError: as `load_split` does; a task without dev split and a fraction outside (0, 1), or
        a train split too small to be divided.
    """
    splits = {split: load_split(task, split, directory) for split in task.files}
    if task.dev_splits:
        return splits
    if not 0 < dev_fraction < 1:
        raise FirthError(
            f"task {task.name!r} has no dev split and data.dev_fraction={dev_fraction:g}; set "
            "data.dev, or a fraction between 0 and 1 that is split off train"
        )
    train, dev = split_off(splits.pop("train"), dev_fraction)
    return {"train": train, "dev": dev} | splits


def split_off(examples: Examples, fraction: float) -> tuple[Examples, Examples]:
    """(train, dev) in the order of the file; dev has about `fraction` of each label.

    Scores are divided by their rank, as if each tenth had a label. Raises FirthError for examples
    too few, or too alike, to be divided.
    """
    group_N = groups_of(examples)
    first_G, sizes_G = np.unique(group_N, return_index=True, return_counts=True)[1:]
    stratum_G = _strata(examples)[first_G]  # a group counts for the label of its first example
    order_G = np.argsort(random_bits(derive_key("dev split"), np.arange(len(first_G))))
    chosen_G = np.zeros(len(first_G), bool)
    owed = 0.0  # what rounding has kept from dev so far, for labels too rare to have one there
    for stratum in np.unique(stratum_G):
        members = order_G[stratum_G[order_G] == stratum]
        left = sizes_G[members].sum()
        owed += fraction * left
        for group in members:
            size = sizes_G[group]
            if size / 2 <= owed and size < left:  # one group of each label stays in train
                chosen_G[group] = True
                owed, left = owed - size, left - size
    if not chosen_G.any():
        raise FirthError(
            f"{examples.source}: no dev split can be split off {len(examples)} examples with "
            f"{len(first_G)} different texts (data.dev_fraction={fraction:g}); give one with "
            "--config.data.dev=FILE, or a larger fraction"
        )
    in_dev_N = chosen_G[group_N]
    return _part(examples, ~in_dev_N), _part(examples, in_dev_N)


def groups_of(examples: Examples) -> np.ndarray:
    """int64 [N]: equal for examples that share a text, directly or through others.

    Case and white space do not count. Where the pairs of a task share their texts so widely that
    more than half of them would be one group, equal pairs alone stay together.
    """
    a = [_key(text) for text in examples.texts_a]
    if examples.texts_b is None:
        return _numbered(a)
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    b = [_key(text) for text in examples.texts_b]
    number = _numbered(a + b)
    count = number.max() + 1
    first_N, second_N = number[: len(a)], number[len(a) :]
    links = coo_array((np.ones(len(a)), (first_N, second_N)), (count, count))
    group_N = connected_components(links, directed=False)[1][first_N].astype(np.int64)
    if np.bincount(group_N).max() <= LARGEST * len(a):
        return group_N
    log.info(
        "%s: most pairs share texts, so that a text of dev may be in train beside another one; "
        "give a dev split of your own to avoid that",
        examples.source,
    )
    return _numbered(list(zip(a, b, strict=True)))


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _numbered(keys: list) -> np.ndarray:
    """int64 [N]: the number of each key, in the order in which they come."""
    numbers = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _strata(examples: Examples) -> np.ndarray:
    """int64 [N]: the label of each example, the rarest of several, or the tenth of its score."""
    if examples.task.kind == "multilabel":
        return rarest_labels(examples.labels)
    if examples.task.kind != "regression":
        return examples.labels.astype(np.int64)
    rank = np.argsort(np.argsort(examples.labels, kind="stable"), kind="stable")
    return rank * BINS // len(examples)


def _part(examples: Examples, chosen_N: np.ndarray) -> Examples:
    """The chosen examples, in the same order."""
    places = np.flatnonzero(chosen_N)

    def of(values: list | None) -> list | None:
        return values and [values[i] for i in places]

    return dataclasses.replace(
        examples,
        texts_a=of(examples.texts_a),
        texts_b=of(examples.texts_b),
        labels=examples.labels[places],
        rows=examples.rows[places],
        choices=of(examples.choices),
        groups=None if examples.groups is None else examples.groups[places],
        places=of(examples.places),
    )
