"""The view of packed rows: every example once an epoch, whole, in batches of one shape."""

import dataclasses

import numpy as np
import pytest

from firth.data.packing.rows import Packed, packed_splits
from firth.data.tasks.buckets import NO_EXAMPLE, Tokenised, starts_of
from firth.errors import FirthError

LENGTH, PAD = 32, 99


def made(count=157, seed=0, labels=True, longest=20, **fields):
    """Examples whose tokens tell which they are; some are pairs."""
    random = np.random.default_rng(seed)
    sizes = random.integers(2, longest + 1, count)
    second = np.where(random.random(count) < 0.5, sizes, sizes // 2)
    tokens = 1000 * np.repeat(np.arange(count), sizes)
    tokens += np.concatenate([np.zeros(0, int), *map(np.arange, sizes)])
    given = random.integers(0, 3, count).astype(np.int32) if labels else None
    return Tokenised(
        tokens.astype(np.int32), starts_of(sizes), second, given, LENGTH, PAD, 0, **fields
    )


def seen(batch, examples):
    """The numbers of a batch's examples, after a look at what it holds of each."""
    found = []
    for row, place in zip(*np.nonzero(batch["weight"]), strict=True):
        number = int(batch["example"][row, place])
        own = batch["text"][row] == place + 1
        begin, end = examples.offsets[number : number + 2]
        np.testing.assert_array_equal(batch["tokens"][row][own], examples.tokens[begin:end])
        after = np.arange(end - begin) >= examples.second[number]
        np.testing.assert_array_equal(batch["segments"][row][own], after)
        assert np.ptp(np.flatnonzero(own)) == end - begin - 1  # without a gap
        if examples.labels is not None:
            assert batch["labels"][row, place] == examples.labels[number]
        found.append(number)
    empty = batch["weight"] == 0
    assert (batch["example"][empty] == NO_EXAMPLE).all()
    assert (batch["mask"] == (batch["text"] > 0)).all()
    assert (batch["tokens"][~batch["mask"]] == PAD).all()
    assert not batch["segments"][~batch["mask"]].any()
    assert batch["text"].max() <= batch["weight"].shape[1]
    return found


@pytest.mark.parametrize("batch_size", [1, 8, 30, 500])
def test_every_epoch_has_each_example_once(batch_size):
    examples = made()
    view, orders = Packed(examples, seed=3), []
    steps = view.steps_per_epoch(batch_size)
    for epoch in range(3):
        batches = [view.batch(epoch * steps + n, batch_size) for n in range(steps)]
        assert all((batch["copy"] == epoch).all() for batch in batches)
        assert all(batch["weight"].any() for batch in batches)
        orders.append([number for batch in batches for number in seen(batch, examples)])
        assert sorted(orders[-1]) == list(range(157))
    assert orders[0] != orders[1] != orders[2]


def rows_of(view, epoch):
    """[(step, the examples of a row that has some)] of an epoch in batches of 20."""
    steps = range(view.steps_per_epoch(20))
    batches = [view.batch(epoch * len(steps) + step, 20) for step in steps]
    return [
        (step, tuple(row[row != NO_EXAMPLE].tolist()))
        for step, batch in zip(steps, batches, strict=True)
        for row in batch["example"]
        if (row != NO_EXAMPLE).any()
    ]


def test_the_texts_of_a_row_are_others_in_every_epoch():
    first, second = ({row for _, row in rows_of(Packed(made()), epoch)} for epoch in (0, 1))
    assert len(first & second) < len(first) / 4


def test_rows_that_share_a_batch_are_others_in_every_epoch():
    """Rows are told by the sizes of their examples."""
    examples = made()
    sizes, orders = np.diff(examples.offsets), []
    for epoch in (0, 1):
        rows = rows_of(Packed(examples), epoch)
        orders.append([tuple(sizes[list(row)]) for _, row in rows])
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def test_several_labels_of_a_text_have_an_axis_of_their_own():
    """Each example has its own, and the fields say so."""
    examples = made()
    labels = np.random.default_rng(1).integers(0, 2, (len(examples), 3)).astype(np.int32)
    examples = dataclasses.replace(examples, labels=labels)
    view = Packed(examples)
    batch = view.batch(0, 30)
    assert batch["labels"].shape[1:] == view.fields["labels"][0] == (view.texts, 3)
    real = batch["weight"] > 0
    np.testing.assert_array_equal(batch["labels"][real], labels[batch["example"][real]])


def test_batches_have_one_shape_as_the_fields_say():
    view = Packed(made())
    for step in range(2 * view.steps_per_epoch(20)):
        batch = view.batch(step, 20)
        assert batch.keys() == view.fields.keys()
        for name, (shape, dtype) in view.fields.items():
            assert batch[name].shape == (view.rows(20), *shape), name
            assert batch[name].dtype == dtype, name


def test_a_batch_has_about_the_examples_that_it_is_asked_for():
    view = Packed(made(2000), seed=1)
    steps = view.steps_per_epoch(32)
    counts = [int(view.batch(step, 32)["weight"].sum()) for step in range(steps)]
    assert abs(np.mean(counts) - 32) < 2 and np.std(counts) < 4
    assert abs(steps - 2000 / 32) < 4
    assert view.pad_fraction(32) < 0.03
    padding = np.mean([(~view.batch(step, 32)["mask"]).mean() for step in range(steps)])
    assert padding == pytest.approx(view.pad_fraction(32))


def test_a_batch_depends_on_seed_and_step_alone():
    """So that a run goes on where it ended."""
    view = Packed(made(), seed=5)
    [view.batch(step, 16) for step in range(7)]
    for name, array in Packed(made(), seed=5).batch(29, 16).items():
        np.testing.assert_array_equal(array, view.batch(29, 16)[name])
    others = Packed(made(), seed=6).batch(29, 16)
    assert (others["example"] != view.batch(29, 16)["example"]).any()


@pytest.mark.parametrize("batch_size", [10, 16, 40])
def test_few_examples_leave_few_rows_empty(batch_size):
    """So many steps as rows make, and no more rows than those steps need."""
    view = Packed(made(63))
    steps, rows = view.steps_per_epoch(batch_size), view.rows(batch_size)
    assert abs(steps - 63 / batch_size) < 1.5
    assert view.pad_fraction(1) < 0.04  # of the rows themselves
    assert view.pad_fraction(batch_size) < 0.04 + steps / (steps * rows)


def test_slices_add_up_to_the_batch():
    view = Packed(made(), multiple=4)
    assert view.rows(16) % 4 == 0 and view.rows(1) == 4
    pairs = [(view.batch(3, 16), [view.batch(3, 16, index=i, count=2) for i in range(2)])]
    halves = zip(*(view.sequential(16, index=i, count=2) for i in range(2)), strict=True)
    pairs += zip(view.sequential(16), halves, strict=True)
    for whole, parts in pairs:
        for name, array in whole.items():
            joined = np.concatenate([part[name] for part in parts])
            np.testing.assert_array_equal(joined, array)


def test_rows_that_slices_would_cut_are_refused():
    view = Packed(made(), rows=lambda batch_size: batch_size // 16)
    with pytest.raises(FirthError, match="1 packed rows cannot be divided into slices like that"):
        view.batch(0, 16, index=1, count=2)


def test_an_evaluation_has_each_example_once_and_a_limit_is_spread():
    examples = made(labels=False)
    view = Packed(examples)
    batches = list(view.sequential(25))
    numbers = [number for batch in batches for number in seen(batch, examples)]
    assert sorted(numbers) == list(range(157)) and "labels" not in batches[0]
    few = [number for batch in view.sequential(25, limit=2) for number in seen(batch, examples)]
    sizes = np.diff(examples.offsets)
    assert 0 < len(few) < 157 and len(set(few)) == len(few)
    assert sizes[few].min() < 6 and sizes[few].max() > 15


def test_all_splits_have_one_shape():
    splits = {"train": made(200), "dev": made(30, seed=1, longest=6), "test": made(9, labels=False)}
    views = packed_splits(splits, seed=0, multiple=2)
    shapes = {next(view.sequential(64))["example"].shape for view in views.values()}
    assert len(shapes) == 1
    assert shapes.pop()[1] == max(Packed(examples).texts for examples in splits.values())


def test_nothing_and_choices_are_refused():
    with pytest.raises(FirthError, match="no examples to batch"):
        Packed(made(0))
    with pytest.raises(FirthError, match=r"data\.packed=True: the choices of a question"):
        Packed(made(8, choices=2))
