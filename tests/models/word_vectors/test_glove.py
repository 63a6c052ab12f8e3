"""GloVe: counts against loops, and a step against AdaGrad written out in double precision."""

import jax.numpy as jnp
import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.word_vectors import cooccurrence, glove

V, D = 7, 4


def brute_force(words, units, window):
    """{(row, column): sum of 1/distance} by loops; words that are left out take no place."""
    kept = [(w, u) for w, u in zip(words, units, strict=True) if w >= 0]
    found = {}
    for i, (word, unit) in enumerate(kept):
        for j in range(max(i - window, 0), i):
            if kept[j][1] == unit:
                for cell in ((word, kept[j][0]), (kept[j][0], word)):
                    found[cell] = found.get(cell, 0) + 1 / (i - j)
    return found


@pytest.mark.parametrize("places", [7, 64, 1 << 19])
def test_counts_are_those_of_loops(places, monkeypatch):
    monkeypatch.setattr(cooccurrence, "PLACES", places)
    draw = np.random.default_rng(places)
    words = draw.integers(-1, V, 150).astype(np.int32)
    units = np.sort(draw.integers(0, 12, 150))
    cells = cooccurrence.count(words, units, V, 5)
    expected = brute_force(words.tolist(), units.tolist(), 5)
    pairs = list(zip(cells.rows.tolist(), cells.columns.tolist(), strict=True))
    assert pairs == sorted(expected)
    np.testing.assert_allclose(cells.values, [expected[pair] for pair in pairs], rtol=1e-6)


def test_a_text_without_pairs_is_refused():
    for words in ([3], [3, -1], [3, 4]):
        with pytest.raises(FirthError, match="no two of its words stand in one window"):
            cooccurrence.count(np.array(words, np.int32), np.arange(len(words)), V, 5)


def some_cells(count, seed=0):
    draw = np.random.default_rng(seed)
    rows, columns = draw.integers(0, V, (2, count)).astype(np.int32)
    return cooccurrence.Cells(rows, columns, draw.gamma(1, 40, count).astype(np.float32))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_step_is_adagrad(legacy):
    cells, rate, x_max = some_cells(40), 0.05, 30.0
    chosen = np.arange(40)
    before = glove.initial(V, D, 0)
    draw = np.random.default_rng(1)
    before = glove.Tables(*(t + jnp.asarray(draw.random(t.shape), jnp.float32) for t in before))
    tables = [np.asarray(t, np.float64) for t in before]
    expected, loss = [t.copy() for t in tables], 0.0
    for i, j, x in zip(*cells, strict=True):
        w, c = tables[0][i], tables[1][j]
        error = w[0, :D] @ c[0, :D] + w[0, D] + c[0, D] - np.log(float(x))
        pull = min(1, (x / x_max) ** 0.75) * error
        loss += pull * error / 2
        for table, row, own, other in ((0, i, w, c), (1, j, c, w)):
            gradient = np.append(pull * other[0, :D], pull)
            if legacy:
                gradient[:D] *= rate
            scale = 1.0 if legacy else rate
            expected[table][row, 0] -= scale * gradient / np.sqrt(own[1])
            expected[table][row, 1] += gradient**2
    chunk = glove.make_chunk(cells, chosen, glove.BATCH, x_max, 0.75)
    assert chunk.steps == 1 and len(chunk.rows) == glove.BATCH
    after, found = glove.train_chunk(before, chunk, rate, legacy)
    assert float(found) == pytest.approx(loss, rel=1e-5)
    for table, wanted in zip(after, expected, strict=True):
        np.testing.assert_allclose(np.asarray(table), wanted, rtol=1e-4, atol=1e-5)


def test_gradients_are_clipped():
    cells = cooccurrence.Cells(*np.array([[2], [3]], np.int32), np.array([1.0], np.float32))
    before = glove.Tables(*(t.at[:, 0].set(30.0) for t in glove.initial(V, D, 0)))
    after, _ = glove.train_chunk(
        before, glove.make_chunk(cells, np.array([0]), 512, 1, 1), 0.5, False
    )
    np.testing.assert_allclose(after.words[2, 0], 30 - 0.5 * 100)
    np.testing.assert_allclose(after.words[2, 1], 1 + 100.0**2)


def test_many_steps_find_the_logarithms():
    rows, columns = np.divmod(np.arange(V * V, dtype=np.int32), V)
    counts = np.random.default_rng(0).gamma(2, 20, (V, V)) + 1
    cells = cooccurrence.Cells(rows, columns, np.float32(counts + counts.T).ravel())
    tables = glove.initial(V, 6, 0)
    for _ in range(800):
        chunk = glove.make_chunk(cells, np.arange(V * V), glove.BATCH, 10.0, 0.75)
        tables, loss = glove.train_chunk(tables, chunk, 0.1, False)
    assert float(loss) / V**2 < 0.01
    w, c = np.asarray(tables.words[:, 0]), np.asarray(tables.contexts[:, 0])
    fitted = w[:, :-1] @ c[:, :-1].T + w[:, -1:] + c[:, -1]
    assert np.abs(fitted.ravel() - np.log(cells.values)).max() < 0.5
    assert glove.vectors_of(tables) == pytest.approx(w[:, :-1] + c[:, :-1])
