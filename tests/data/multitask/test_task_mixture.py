"""Which task a step has: a function of (seed, step), in proportion, each example once a pass."""

import numpy as np
import pytest

from firth.data.multitask import mixture
from firth.data.multitask.mixture import Mixture, TaskBuckets
from firth.data.tasks.buckets import Tokenised
from firth.errors import FirthError

B = 4


def view(examples, number, labels=None, width=3):
    sizes = np.random.default_rng(number).integers(2, 9, examples)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    if labels is None:
        labels = np.arange(examples, dtype=np.int32)
    rows = Tokenised(np.ones(offsets[-1], np.int32), offsets, sizes, labels, 8, 0, 0, None)
    return TaskBuckets(rows, (4, 8), number=number, width=width)


def mixed(seed=0, power=1.0, sizes=(160, 40, 8)):
    return Mixture([view(n, i) for i, n in enumerate(sizes)], seed, power)


@pytest.mark.parametrize("power", [1.0, 0.5, 0.0])
def test_tasks_come_in_proportion_to_their_batches_to_a_power(power):
    one, steps = mixed(power=power), 20_000
    drawn = np.array([one.place(step, B)[0] for step in range(steps)])
    expected = np.array([40, 10, 2.0]) ** power
    expected /= expected.sum()
    np.testing.assert_allclose(one.probabilities(B), expected)
    deviation = np.sqrt(expected * (1 - expected) / steps)
    assert np.all(np.abs(np.bincount(drawn) / steps - expected) < 4 * deviation)
    assert one.steps_per_epoch(B) == 52


def test_a_step_depends_on_the_seed_and_itself_alone(monkeypatch):
    """Read in any order, over borders of blocks, and by any slice of the batch."""
    monkeypatch.setattr(mixture, "BLOCK", 16)
    first, again = mixed(), mixed()
    steps = [70, 3, 15, 16, 17, 47, 48, 0]
    found = {step: again.batch(step, B) for step in steps}
    visits = np.zeros(3, int)
    for step in range(71):
        task, visit = first.place(step, B)
        assert visit == visits[task]
        visits[task] += 1
        if step in found:
            whole = first.batch(step, B)
            halves = [first.batch(step, B, index, 2) for index in range(2)]
            for name, value in whole.items():
                np.testing.assert_array_equal(found[step][name], value)
                np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), value)
    others = [mixed(seed=1).place(step, B) for step in range(60)]
    assert others != [first.place(step, B) for step in range(60)]


def test_a_batch_is_of_one_task_and_each_pass_has_every_example_once():
    one, seen = mixed(sizes=(24, 12)), {0: [], 1: []}
    for step in range(200):
        batch = one.batch(step, B)
        (task,) = set(batch["task"])
        seen[task].append(batch["example"])
    for task, batches in ((0, 6), (1, 3)):
        passes = len(seen[task]) // batches
        assert passes > 5
        rows = np.concatenate(seen[task][: passes * batches]).reshape(passes, -1)
        np.testing.assert_array_equal(np.sort(rows, axis=1), [np.arange(rows.shape[1])] * passes)


def test_labels_of_all_kinds_have_one_shape():
    labels = np.random.default_rng(0).integers(0, 2, (12, 2)).astype(np.int32)
    several = view(12, 1, labels)
    for one, kind in ((view(12, 0), "index"), (several, "several")):
        batch = one.batch(0, B)
        assert batch["labels"].shape == (B, 3) and batch["labels"].dtype == np.float32
        assert one.fields["labels"] == ((3,), np.dtype(np.float32))
        expected = batch["example"][:, None] if kind == "index" else labels[batch["example"]]
        np.testing.assert_array_equal(batch["labels"][:, : expected.shape[1]], expected)
        assert not batch["labels"][:, expected.shape[1] :].any()


def test_a_power_below_zero_is_refused():
    with pytest.raises(FirthError, match=r"data\.task_power=-1: expected 0 or more"):
        mixed(power=-1.0)
