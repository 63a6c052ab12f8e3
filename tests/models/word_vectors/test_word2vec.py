"""Skip-gram and CBOW: one step against autograd in double precision, windows against their rule."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from firth.models.word_vectors import word2vec
from firth.models.word_vectors.vocabulary import huffman, noise_steps

V, D, WINDOW, RATE = 9, 6, 2, 0.3
COUNTS = np.array([40, 22, 15, 9, 8, 5, 3, 2, 2])
KINDS = [(a, loss) for a in word2vec.ARCHITECTURES for loss in word2vec.LOSSES]


def make(architecture, loss, words, units, seed=0, sizes=(2, 4)):
    sizes = word2vec.Sizes(architecture, loss, WINDOW, 2, *sizes)
    draw = np.random.default_rng(seed)
    chunk = word2vec.make_chunk(
        words, units, np.ones(V), noise_steps(COUNTS), sizes, (RATE, RATE), draw
    )
    return sizes, chunk


def tables(seed=1):
    draw = np.random.default_rng(seed)
    return word2vec.Tables(*(jnp.asarray(draw.normal(0, 1, (V, D)), jnp.float32) for _ in "io"))


def windows(chunk, count):
    """[(centre, places of its window), ...] by loops."""
    return [
        (
            j + WINDOW,
            [j + WINDOW + k for k in range(-int(chunk.left[j]), int(chunk.right[j]) + 1) if k != 0],
        )
        for j in range(count)
    ]


def reference(inputs, outputs, chunk, sizes, count, codes):
    """The nats of a chunk, as a torch scalar with the gradients of the tool."""
    nats = torch.zeros((), dtype=torch.float64)
    log = torch.nn.functional.logsigmoid
    for centre, window in windows(chunk, count):
        word = int(chunk.line[centre])
        x = [inputs[int(chunk.line[place])] for place in window]
        if sizes.architecture == "cbow" and x:
            total = torch.stack(x).sum(0)  # of value the mean, but of gradient the sum
            x = [total - total.detach() + total.detach() / len(x)]
        for vector in x:
            if sizes.loss == "hierarchical":
                for node, bit in zip(codes[0][word], codes[1][word], strict=True):
                    if node >= 0:
                        nats = nats - log((1 if bit == 0 else -1) * vector @ outputs[int(node)])
                continue
            nats = nats - log(vector @ outputs[word])
            noise = chunk.noise[(centre - WINDOW) // sizes.size]
            for other in noise:
                if other != word:
                    share = sizes.negative / len(noise)
                    nats = nats - share * log(-(vector @ outputs[int(other)]))
    return nats


@pytest.mark.parametrize(("architecture", "loss"), KINDS)
def test_a_step_is_minus_the_rate_times_the_gradient(architecture, loss):
    draw = np.random.default_rng(3)
    words = draw.integers(0, V, 8).astype(np.int32)
    sizes, chunk = make(architecture, loss, words, np.array([0, 0, 0, 0, 0, 1, 1, 2]))
    codes = huffman(COUNTS)
    before = tables()
    params = [torch.tensor(np.asarray(t, np.float64), requires_grad=True) for t in before]
    nats = reference(*params, chunk, sizes, len(words), codes)
    nats.backward()
    after, loss_sum, _ = word2vec.train_chunk(before, chunk, tuple(map(jnp.asarray, codes)), sizes)
    assert float(loss_sum) == pytest.approx(nats.item(), rel=1e-5)
    for table, param in zip(after, params, strict=True):
        assert param.grad.abs().max() > 0.1
        expected = param.detach() - RATE * param.grad
        np.testing.assert_allclose(np.asarray(table), expected, atol=2e-5)


def test_pairs_are_counted_and_steps_follow_each_other():
    words, units = np.arange(8, dtype=np.int32) % V, np.zeros(8, int)
    (small, first), (big, second) = (
        make("skipgram", "negative", words, units, sizes=sizes) for sizes in ((1, 4), (2, 4))
    )
    assert (first.steps, second.steps) == (2, 1)
    pairs = sum(len(window) for _, window in windows(first, 8))
    for sizes, chunk in ((small, first), (big, second)):
        assert float(word2vec.train_chunk(tables(), chunk, None, sizes)[2]) == pairs
    one, two = (
        word2vec.train_chunk(tables(), c, None, s)[0] for c, s in ((first, small), (second, big))
    )
    assert np.abs(np.asarray(one.inputs - two.inputs)).max() > 1e-3  # the second step saw the first


def test_windows_stay_in_their_sentence_and_skip_what_is_left_out():
    words = np.array([3, -1, 4, 5, 6, 7, 1, -1, 2], np.int32)
    units = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    radii = set()
    for seed in range(40):
        _, chunk = make("skipgram", "negative", words, units, seed)
        assert chunk.line[WINDOW : WINDOW + 7].tolist() == [3, 4, 5, 6, 7, 1, 2]
        line = [0, 0, 0, 1, 1, 1, 2]
        for place in range(7):
            before = line[:place].count(line[place])
            after = line[place + 1 :].count(line[place])
            wide = (min(before, WINDOW), min(after, WINDOW))
            narrow = (min(before, 1), min(after, 1))
            found = int(chunk.left[place]), int(chunk.right[place])
            assert found in (wide, narrow)
            radii |= {found == wide} if wide != narrow else set()
    assert radii == {True, False}


def test_padding_trains_nothing():
    nothing = np.full(8, -1, np.int32)
    for architecture, loss in KINDS:
        sizes, chunk = make(architecture, loss, nothing, np.zeros(8, int))
        assert chunk.steps == 0
        codes = tuple(map(jnp.asarray, huffman(COUNTS)))
        full = chunk._replace(steps=1, rates=np.ones_like(chunk.rates))
        after, nats, pairs = word2vec.train_chunk(tables(), full, codes, sizes)
        assert float(nats) == float(pairs) == 0
        for table, before in zip(after, tables(), strict=True):
            np.testing.assert_array_equal(table, before)


def test_rates_fall_along_a_chunk_and_subsampling_thins_out():
    words = np.zeros(4000, np.int32)
    words[::10] = 1
    kept = np.array([0.25, 1.0, *[1.0] * (V - 2)])
    sizes = word2vec.sizes_of("skipgram", "negative", 2, 5)
    draw = np.random.default_rng(0)
    chunk = word2vec.make_chunk(
        words, np.zeros(4000, int), kept, noise_steps(COUNTS), sizes, (0.4, 0.2), draw
    )
    count = int((chunk.left + chunk.right > 0).sum())
    assert (chunk.line[2 : 2 + count] == 1).sum() == 400
    assert 800 < (chunk.line[2 : 2 + count] == 0).sum() < 1000
    assert chunk.steps == -(-count // 128)
    rates = chunk.rates[: chunk.steps]
    assert rates[0] == np.float32(0.4) and 0.2 < rates[-1] < rates[-2] < 0.4
    used = chunk.noise[: chunk.steps * sizes.groups]
    assert used.shape[1] == 40
    share = np.bincount(used.ravel(), minlength=V) / used.size
    np.testing.assert_allclose(share, COUNTS**0.75 / (COUNTS**0.75).sum(), atol=0.03)


def test_the_first_tables_are_those_of_the_tool():
    first = word2vec.initial(V, D, 0)
    assert np.abs(first.inputs).max() <= 0.5 / D and np.std(first.inputs) > 0.2 / D
    assert not np.asarray(first.outputs).any()
    assert (np.asarray(word2vec.initial(V, D, 1).inputs) != first.inputs).any()
