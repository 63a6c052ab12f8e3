"""What holds for every view: purity, elastic slices, complete epochs, exact resume."""

import random

import numpy as np
import pytest
from helpers.stores import IDS, PAD, joined, random_documents, read_at_once, same, store_of
from helpers.views import packed, pairs

from firth.data.views.pairs import PairPlanner
from firth.errors import FirthError

STORE = store_of(random_documents(0, 60))
MAKERS = {
    "packed": lambda **options: packed(STORE, 64, **IDS, **options),
    "pairs": lambda **options: pairs(STORE, 64, **IDS, **options),
    "static pairs": lambda **options: pairs(STORE, 64, dupe_factor=2, **IDS, **options),
}
every_view = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


@every_view
def test_fields_are_as_promised(make):
    view = make()
    batch = view.batch(2, 12)
    assert list(batch) == list(view.fields)
    for name, (shape, dtype) in view.fields.items():
        assert batch[name].shape == (12, *shape) and batch[name].dtype == dtype
    assert {"tokens", "segments", "mask", "example", "copy"} <= set(batch)
    assert (view.length, batch["tokens"].dtype, batch["mask"].dtype) == (64, np.int32, bool)
    assert batch["example"].dtype == batch["copy"].dtype == np.uint32


@every_view
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_slices_of_any_count_add_up_to_the_same_batch(make, count):
    whole, view = make(seed=3), make(seed=3)
    steps = 2 * whole.epoch_size(0) // 16 + 2  # across two epoch ends
    for step in range(steps):
        slices = [view.batch(step, 16, index, count) for index in range(count)]
        assert same(joined(slices), whole.batch(step, 16))


@every_view
@pytest.mark.parametrize("batch_size", [1, 7, 16])
def test_no_example_twice_and_none_missing_per_epoch(make, batch_size):
    view = make(seed=1)
    sizes = [view.epoch_size(epoch) for epoch in range(3)]
    rows = joined([view.batch(step, batch_size) for step in range(sum(sizes) // batch_size + 1)])
    orders = np.split(rows["example"][: sum(sizes)], np.cumsum(sizes)[:-1])
    for order, size in zip(orders, sizes, strict=True):
        assert np.array_equal(np.sort(order), np.arange(size))
        assert not np.array_equal(order, np.arange(size))
    assert not np.array_equal(orders[0][:20], orders[1][:20])


@every_view
def test_batches_are_pure(make):
    straight, view = make(seed=5), make(seed=5)
    steps = list(range(3 * straight.epoch_size(0) // 16))
    expected = [straight.batch(step, 16) for step in steps]
    random.Random(0).shuffle(steps)
    assert all(same(view.batch(step, 16), expected[step]) for step in steps)
    assert same(make(seed=5).batch(np.int32(20), 16), expected[20])  # resume in a new process
    assert not same(make(seed=6).batch(20, 16), expected[20])


@every_view
def test_threads_see_the_same_batches(make):
    straight, view = make(), make()
    steps = list(range(4 * straight.epoch_size(0) // 16))
    expected = [straight.batch(step, 16) for step in steps]
    assert not read_at_once(view, expected, batch_size=16, threads=4)


def test_resume_far_away_needs_no_history():
    view = MAKERS["packed"]()
    size = view.epoch_size(0)
    batch = view.batch(10**9, 16)
    assert batch["copy"].tolist() == [(10**9 * 16 + row) // size for row in range(16)]


def test_batch_larger_than_several_epochs():
    view = packed(store_of([[6, 6, 6]]), 8, **IDS)
    batch = view.batch(1, 8)  # examples 8..15 of epochs of 3
    assert batch["copy"].tolist() == [2, 3, 3, 3, 4, 4, 4, 5]
    assert sorted(batch["example"][1:4].tolist()) == [0, 1, 2]


def test_epoch_sizes_from_the_cache_save_planning(tmp_path, monkeypatch):
    cache, planned, plan = tmp_path / "sizes.json", [], PairPlanner.plan
    monkeypatch.setattr(
        PairPlanner, "plan", lambda self, number: planned.append(number) or plan(self, number)
    )
    first = pairs(STORE, 64, cache=cache, **IDS)
    step = sum(first.epoch_size(epoch) for epoch in range(4)) // 16 - 1
    expected = first.batch(step, 16)
    assert planned == [0, 1, 2, 3]
    planned.clear()
    assert same(pairs(STORE, 64, cache=cache, **IDS).batch(step, 16), expected)
    assert planned == [3]
    for other in ({"seed": 1}, {"short_seq_prob": 0.2}, {"documents": np.arange(50)}):
        planned.clear()
        pairs(STORE, 64, cache=cache, **other, **IDS).batch(step, 16)
        assert planned[:3] == [0, 1, 2]


def test_only_the_last_two_plans_are_kept(monkeypatch):
    planned, plan = [], PairPlanner.plan
    monkeypatch.setattr(
        PairPlanner, "plan", lambda self, number: planned.append(number) or plan(self, number)
    )
    view = MAKERS["pairs"]()
    starts = np.cumsum([0] + [view.epoch_size(epoch) for epoch in range(3)])
    planned.clear()
    for epoch in (1, 2, 1, 2, 0, 2, 1):
        view.batch(int(starts[epoch]), 1)
    assert planned == [0, 1]  # 1 and 2 were at hand; 0 drove out 1


@every_view
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sequential_shows_every_example_once_in_order(make, count):
    view = make()
    size = view.epoch_size(0)
    slices = [list(view.sequential(12, index, count)) for index in range(count)]
    assert len({len(part) for part in slices}) == 1
    batches = [joined(list(parts)) for parts in zip(*slices, strict=True)]
    assert all(len(batch["tokens"]) == 12 for batch in batches)
    rows = joined(batches)
    real = rows["mask"].any(-1)
    assert rows["example"][real].tolist() == list(range(size))
    assert real.tolist() == [True] * size + [False] * (len(real) - size)
    assert 0 < len(real) - size < 12
    assert np.all(rows["tokens"][~real] == PAD) and not rows["segments"][~real].any()
    assert all(rows[name].dtype == dtype for name, (_, dtype) in view.fields.items())
    assert np.all(rows["copy"] == 0)


def test_limited_sequential_is_spread_over_the_epoch():
    view = MAKERS["packed"]()
    size = view.epoch_size(0)
    rows = joined(list(view.sequential(8, limit=5)))
    assert rows["mask"].any(-1).all() and len(rows["example"]) == 40 < size
    assert np.all(np.diff(rows["example"].astype(int)) >= size // 40)
    assert rows["example"][-1] >= size - size // 40 - 1
    assert len(list(view.sequential(8, limit=10**6))) == -(-size // 8)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_tokens_may_be_mapped_from_disk(tmp_path, dtype):
    np.save(tmp_path / "tokens.npy", STORE.tokens.astype(dtype))
    mapped = store_of(random_documents(0, 60))
    mapped.tokens = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    for view, expected in (
        (packed(mapped, 64, **IDS), MAKERS["packed"]()),
        (pairs(mapped, 64, **IDS), MAKERS["pairs"]()),
    ):
        assert same(view.batch(4, 16), expected.batch(4, 16))


@pytest.mark.parametrize("make", [packed, pairs], ids=["packed", "pairs"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 7}, "length=7 is too short"),
        ({"cls_id": None}, "cls_id=None is no token id"),
        ({"pad_id": -1}, "pad_id=-1 is no token id"),
        ({"documents": np.array([], int)}, "no tokens in the selected documents"),
    ],
)
def test_bad_views_are_refused(make, arguments, message):
    with pytest.raises(FirthError, match=message):
        make(STORE, **{"length": 64, **IDS, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 16, 0, 3), "16 rows cannot be divided into 3 equal slices"),
        ((0, 0), "a batch of 0 rows"),
        ((0, 16, 4, 4), "no slice 4 of 4"),
        ((0, 16, -1, 4), "no slice -1 of 4"),
        ((-1, 16), "no batch for step -1"),
    ],
)
def test_bad_batches_are_refused(arguments, message):
    with pytest.raises(FirthError, match=message):
        MAKERS["packed"]().batch(*arguments)
    if arguments[0] == 0:
        with pytest.raises(FirthError, match=message):
            MAKERS["packed"]().sequential(*arguments[1:])


def test_limit_of_nothing_is_refused():
    with pytest.raises(FirthError, match="limit=0 batches"):
        MAKERS["packed"]().sequential(8, limit=0)
