"""Permutation language modelling: what is predicted, the order, and what is refused."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit
from helpers.rows import CLS, SEP, SPECIAL, UNLIKELY, Hashable, corrupt, keys, make_batch
from ml_collections import ConfigDict
from scipy.stats import chisquare

from firth.errors import FirthError
from firth.models.model import bound, create
from firth.objectives import plm, spans
from firth.objectives.objective import Sources

WORDY = (np.arange(60) % 4 == 0).view(Hashable)
STARTS = (np.random.default_rng(3).random(60) < 0.6).view(Hashable)
PAPER = plm.PermutationLM(SPECIAL, 85, STARTS, perm_size=256, reuse=256, memory=384, backwards=True)
SMALL = plm.PermutationLM(SPECIAL, 6, STARTS, reuse=16)


def xlnet_rows(rows, length, seed=0):
    """Rows as the view makes them: text ‖ A [SEP] B [SEP] [CLS], half of it reused."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(5, 60, (rows, length)).astype(np.int32)
    tokens[:, -1], tokens[:, -2] = CLS, SEP
    tokens[np.arange(rows), rng.integers(length // 2 + 1, length - 3, rows)] = SEP
    return make_batch(tokens, np.ones_like(tokens, bool))


@functools.cache
def made(objective=PAPER, length=512):
    batch = xlnet_rows(64, length)
    return jax.device_get(corrupt(objective)(batch, jax.random.key(1)))


# ------------------------------------------------------------------------- what is predicted


def test_85_of_512_half_in_each_part():
    batch = made()
    assert batch["positions"].shape == (64, 85)
    assert (batch["target_weights"] == 1).all()
    in_first = (batch["positions"] < 256).sum(1)
    assert (in_first == 43).all()  # and 42 in the second
    for row in batch["positions"]:
        assert len(set(row.tolist())) == 85


def test_targets_are_the_tokens_and_never_special():
    batch = made()
    np.testing.assert_array_equal(
        batch["targets"], np.take_along_axis(batch["tokens"], batch["positions"], 1)
    )
    assert not np.isin(batch["targets"], SPECIAL).any()


@pytest.mark.parametrize("words", [False, True])
def test_spans_are_those_of_the_code(words):
    """Against the loop of `_sample_mask`, fed the same random numbers."""
    size, budget = 64, 10
    place = jit(
        functools.partial(spans.scattered_spans, budget=budget, alpha=6, beta=1, words=words)
    )
    chances = np.cumsum(1 / np.arange(1, 6) / (1 / np.arange(1, 6)).sum())
    for number, key in enumerate(keys(40)):
        starts = np.random.default_rng(number).random(size) < 0.7
        uniforms = np.asarray(jax.random.uniform(key, (budget, 2)))
        expected, at, chosen = np.zeros(size, bool), 0, 0
        for first, second in uniforms:
            if chosen >= budget:
                break
            n = min(1 + int(np.searchsorted(chances[:-1], first, side="right")), budget - chosen)
            left = int(np.float32(second) * np.float32(n * 6))
            begin = at + left
            while begin < size and not starts[begin]:
                begin += 1
            if begin >= size:
                break
            end = begin + n
            if words:
                end = begin
                for _ in range(n):
                    end += 1
                    while end < size and not starts[end]:
                        end += 1
                end = min(end, begin + budget - chosen)
            if end >= size:
                break
            expected[begin:end] = True
            chosen += end - begin
            at = end + n * 6 - left
        np.testing.assert_array_equal(place(key, starts), expected)


def test_span_lengths_are_in_proportion_to_one_over_n():
    """Systems' rule: n of 1 .. 5 with chance 1/n; the first span of a long row shows it."""
    n, size = 4000, 128
    place = jit(
        jax.vmap(functools.partial(spans.scattered_spans, budget=64, alpha=6, beta=1, words=False),
                 in_axes=(0, None))
    )  # fmt: skip
    chosen = np.asarray(place(keys(n), np.ones(size, bool)))
    begin = chosen.argmax(1)
    lengths = (~chosen[np.arange(n)[:, None], begin[:, None] + np.arange(6)]).argmax(1)
    counts = np.bincount(lengths, minlength=6)[1:6]
    chance = 1 / np.arange(1, 6)
    assert chisquare(counts, n * chance / chance.sum()).pvalue > UNLIKELY
    assert abs(chosen[:, : size // 2].mean() - 1 / 7) < 0.02  # n of every n + 6 n


def test_single_tokens():
    objective = dataclasses.replace(SMALL, selection="token")
    batch = made(objective, 32)
    assert (batch["target_weights"] == 1).all() and not np.isin(batch["targets"], SPECIAL).any()
    ordinary = ~np.isin(batch["tokens"], SPECIAL)
    counts = np.zeros(32)
    np.add.at(counts, batch["positions"].ravel(), 1)
    assert counts[~ordinary.any(0)].sum() == 0 and counts[:16].sum() == counts[16:].sum() == 64 * 3


def test_parts_and_rows_draw_on_their_own():
    """Rows all alike whose second half repeats the first: no two choose or order alike."""
    tokens = np.tile(np.random.default_rng(0).integers(5, 60, 16), (40, 2)).astype(np.int32)
    batch = jax.device_get(corrupt(SMALL)(make_batch(tokens, tokens > 0), jax.random.key(0)))
    positions = np.sort(batch["positions"], axis=1)
    halves = [positions[:, :3], positions[:, 3:] - 16]
    assert (halves[0] == halves[1]).all(1).mean() < 0.2
    for half in halves:
        assert len({row.tobytes() for row in half}) > 20
    orders = [np.argsort(part, axis=1)[:, -3:] for part in np.split(batch["ranks"], 2, axis=1)]
    assert (orders[0] == orders[1]).all(1).mean() < 0.2


def test_slots_that_nothing_fills_weigh_nothing():
    tokens = np.full((2, 32), SEP, np.int32)
    tokens[:, :2] = 9
    present = np.arange(32) < np.array([[32], [1]])  # padding is not told by its token
    batch = jax.device_get(corrupt(SMALL)(make_batch(tokens, present), jax.random.key(0)))
    assert batch["target_weights"].sum(1).tolist() == [2, 1]


def test_what_fills_the_slots_hangs_on_nothing_that_the_spans_drew():
    """Place 0 begins no word, so that only a single token falls there: whatever the first span."""
    objective = plm.PermutationLM(SPECIAL, 8, WORDY, selection="span")
    tokens = np.full((3000, 24), 8, np.int32)
    tokens[:, :2] = 9
    batch = jax.device_get(corrupt(objective)(make_batch(tokens, tokens > 0), jax.random.key(0)))
    chosen = np.zeros((3000, 26), bool)
    np.put_along_axis(chosen, batch["positions"], True, 1)
    filled, first = chosen[:, 0], chosen[:, 2:].argmax(1) + 2
    lengths = (
        ~chosen[np.arange(3000)[:, None], np.minimum(first[:, None] + np.arange(7), 25)]
    ).argmax(1)
    assert 300 < filled.sum() < 2000
    assert abs(lengths[filled].mean() - lengths[~filled].mean()) < 0.25


# ----------------------------------------------------------------------------------- the order


def test_ranks_say_what_the_released_masks_say():
    """Against `_local_perm` in plain Python: who is blocked for whom, in both parts."""
    batch = made()
    for row in range(4):
        tokens, ranks = batch["tokens"][row], batch["ranks"][row]
        target = np.zeros(512, bool)
        target[batch["positions"][row]] = True
        functional = np.isin(tokens, SPECIAL)
        blocked = np.zeros((512, 512), bool)
        for part in (slice(0, 256), slice(256, 512)):
            aside = target[part] | functional[part]
            order = np.where(aside, ranks[part] - ranks[part].min(), -1)
            own = np.where(target[part], order, order + 1)
            blocked[part, part] = (own[:, None] <= order) & aside
        blocked[:256, 256:] = True
        query = ranks[:, None] <= ranks  # what the query stream may not see
        np.testing.assert_array_equal(query[target], blocked[target])
        content = ranks[:, None] < ranks  # a target's content stream sees itself besides
        apart = ~np.eye(512, dtype=bool)
        np.testing.assert_array_equal(content[apart], blocked[apart])


def test_ordinary_tokens_come_first_and_the_rest_in_a_random_order():
    batch = made()
    aside = np.isin(batch["tokens"], SPECIAL)
    np.put_along_axis(aside, batch["positions"], True, 1)
    first, second = batch["ranks"][:, :256], batch["ranks"][:, 256:] - 513
    for ranks, apart in ((first, aside[:, :256]), (second, aside[:, 256:])):
        assert (ranks[~apart] == 0).all() and (ranks[apart] > 0).all()
        for row, chosen in zip(ranks, apart, strict=True):
            assert len(set(row[chosen].tolist())) == chosen.sum()  # a strict order
    middle = np.median(first[aside[:, :256]])
    assert abs(middle - 128) < 12


def test_the_order_repeats_from_block_to_block():
    """`perm_size`: in block b the ranks are those of block 0 plus b * perm_size."""
    objective = plm.PermutationLM(SPECIAL, 32, STARTS, selection="token", perm_size=8)
    tokens = np.full((4, 64), 7, np.int32)
    batch = jax.device_get(corrupt(objective)(make_batch(tokens, tokens > 0), jax.random.key(0)))
    for row in batch["ranks"]:
        blocks = row.reshape(8, 8)
        aside = blocks > 0
        np.testing.assert_array_equal((blocks[aside] - 1) // 8, np.nonzero(aside)[0])
        offsets = np.where(blocks > 0, blocks - 1 - 8 * np.arange(8)[:, None], -1)
        assert offsets.max() < 8
        for column in offsets.T:
            assert len(set(column[column >= 0].tolist())) <= 1


def test_a_row_does_not_depend_on_its_batch():
    batch = xlnet_rows(8, 32)
    whole = corrupt(SMALL)(batch, jax.random.key(2))
    part = corrupt(SMALL)({k: v[3:5] for k, v in batch.items()}, jax.random.key(2))
    for name in ("ranks", "positions"):
        np.testing.assert_array_equal(whole[name][3:5], part[name])


# ----------------------------------------------------------------------------------- losses


def model():
    return create(
        dict(family="xlnet", vocab_size=60, num_layers=2, hidden_size=16, num_heads=2,
             intermediate_size=24, init_stddev=0.3),
        ("lm",),
    )  # fmt: skip


def test_the_loss_is_the_mean_log_probability_of_the_targets():
    objective = dataclasses.replace(SMALL, memory=8)
    m = model()
    params = initial(m, jnp.zeros((1, 4), jnp.int32), scale=0.1)
    batch = xlnet_rows(4, 32) | {"segments": jnp.zeros((4, 32), jnp.int32)}
    batch = corrupt(objective)(batch, jax.random.key(0)) | {"carry": objective.carry(m, 4)}
    batch["reset"] = jnp.zeros(4, bool)
    run = jit(bound(m, lambda m, b: objective.losses(m, b, train=False)))
    sums, metrics, memory = run(params, batch)

    def logits(m, b):
        args = (b["tokens"], b["segments"], b["mask"], b["ranks"], b["positions"])
        return m.lm(m.encoder.two_streams(*args, train=False, memory=b["carry"])[1])

    log_p = jax.nn.log_softmax(jit(bound(m, logits))(params, batch))
    expected = -jnp.take_along_axis(log_p, batch["targets"][..., None], -1).sum()
    np.testing.assert_allclose(sums["plm"], expected, rtol=1e-5)
    assert float(metrics["plm_loss"][1]) == float(objective.weights(batch)["plm"]) == 24
    assert memory["filled"].tolist() == [8] * 4
    kept = jit(bound(m, lambda m, b: m.encoder.embed(b["tokens"], None, None, train=False)))
    np.testing.assert_array_equal(memory["hidden"][:, 0], kept(params, batch)[:, 8:16])
    # What is remembered counts, but not for rows that begin another text.
    carried, forgot = (
        run(params, batch | {"carry": memory, "reset": jnp.full(4, reset)})[0]["plm"]
        for reset in (False, True)
    )
    np.testing.assert_allclose(forgot, sums["plm"], rtol=1e-6)
    assert abs(carried - forgot) > 1e-3


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(max_predictions=0), "selects nothing"),
        (dict(reuse=4, max_predictions=1), "selects nothing"),
        (dict(selection="sentence"), "selection='sentence' is unknown"),
        (dict(unit="letter"), "unit='letter' is unknown"),
        (dict(alpha=0), "leave no context"),
        (dict(memory=-1), "must be >= 0"),
    ],
)
def test_bad_settings(changes, reason):
    with pytest.raises(FirthError, match=reason):
        dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("changes", "data", "reason"),
    [
        (dict(memory=4), dict(view="packed"), "memory=4 needs data.view='streams'"),
        (dict(), dict(reuse=8), "objective.reuse=16 but data.reuse=8"),
        (dict(backwards=True), dict(reuse=16), "objective.backwards=True but data.bidirectional"),
        (dict(perm_size=5), dict(reuse=16), "perm_size=5 does not divide the 16 tokens"),
        (dict(reuse=32), dict(reuse=32), "is not below data.length=32"),
        (dict(max_predictions=20), dict(reuse=16), "more than half"),
    ],
)
def test_data_that_do_not_fit(changes, data, reason):
    section = ConfigDict(dict(view="streams", length=32) | data)
    with pytest.raises(FirthError, match=reason):
        dataclasses.replace(SMALL, **changes).check(section)


def test_only_a_body_with_two_streams():
    class Tokenizer:
        pad_id, cls_id, sep_id, word_starts = 0, 1, 2, STARTS

    with pytest.raises(FirthError, match="needs a content and a query stream"):
        plm.PermutationLM.from_config(
            dict(max_predictions=4), Sources(Tokenizer(), body=dict(family="bert"))
        )
