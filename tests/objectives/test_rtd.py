"""Replaced-token detection: what is filled in, what is learned, and what no gradient reaches."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.quick import initial, jit
from scipy.stats import chisquare
from sklearn.metrics import roc_auc_score

from firth.errors import FirthError
from firth.models.model import bound, merge_params
from firth.objectives import mask
from firth.objectives.mlm import MaskedLM
from firth.objectives.objective import Sources
from firth.objectives.rtd import VARIANTS, ReplacedTokens
from firth.objectives.sample import sample
from firth.run.experiment import create_model

B, L, V = 6, 16, 40
MASKED = MaskedLM(4, V, (0, 2, 3), max_predictions=5, rate=0.3, rates=(0.85, 0.0))
BODIES = {
    "electra": dict(embedding_size=12),
    "roberta": {},
    "albert": dict(embedding_size=12, num_groups=2),
    "modernbert": {},
    "bert": {},
}


def spec(family="electra", **changes):
    return (
        dict(
            family=family,
            vocab_size=V,
            num_layers=2,
            hidden_size=32,
            num_heads=4,
            intermediate_size=48,
            max_length=L,
            dropout=0.0,
            attention_dropout=0.0,
        )
        | BODIES[family]
        | changes
    )


@pytest.fixture(scope="module")
def clean():
    rng = np.random.default_rng(0)
    mask = np.arange(L) < np.array([16, 16, 12, 9, 16, 5])[:, None]
    tokens = np.where(mask, rng.integers(5, V, (B, L)), 0).astype(np.int32)
    tokens[:, 0] = 2
    tokens[np.arange(B), mask.sum(1) - 1] = 3
    return {
        "tokens": jnp.asarray(tokens),
        "segments": jnp.zeros((B, L), jnp.int32),
        "mask": jnp.asarray(mask),
        "example": jnp.arange(B, dtype=jnp.uint32),
        "copy": jnp.zeros(B, jnp.uint32),
    }


def made(objective, body=None, seed=0):
    """(model, parameters scaled up so that the generator has opinions)."""
    model = create_model(body or spec(), objective)
    params = initial(model, jnp.zeros((1, L), jnp.int32), seed=seed)
    return model, jax.tree.map(lambda leaf: 8 * leaf if leaf.ndim > 1 else leaf, params)


def test_samples_stand_at_the_masked_positions_alone(clean):
    objective = ReplacedTokens(MASKED)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    P = batch["positions"].shape[1]
    filled = objective.fill(jnp.zeros((B, P, V)), batch)
    changed = np.asarray(filled != clean["tokens"])
    chosen = np.zeros((B, L), bool)
    used = np.asarray(batch["target_weights"]) > 0
    chosen[np.nonzero(used)[0], np.asarray(batch["positions"])[used]] = True
    assert changed.any() and not (changed & ~chosen).any()
    # Uniform logits: all but 1 in V draws change the token, and no more masks than that stay.
    assert changed.sum() >= 0.8 * chosen.sum()
    assert (np.asarray(batch["tokens"])[chosen] == 4).sum() > 5
    assert (np.asarray(filled)[chosen] == 4).mean() < 0.2


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_samples_follow_the_generators_softmax_at_the_temperature(temperature, correct):
    """p(x) in proportion to exp(logit / T), the original left out where that is asked for."""
    objective = ReplacedTokens(MASKED, temperature=temperature, correct=correct)
    logits, rows = np.random.default_rng(0).normal(size=V), 4000
    batch = {
        "original": jnp.full((rows, L), 9),
        "positions": jnp.tile(jnp.arange(5), (rows, 1)),
        "targets": jnp.full((rows, 5), 9),
        "target_weights": jnp.ones((rows, 5)),
        "uniform": jax.random.uniform(jax.random.key(0), (rows, 5, 2)),
    }
    filled = objective.fill(jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (rows, 5, V)), batch)
    counts = np.bincount(np.asarray(filled)[:, :5].ravel(), minlength=V)
    chance = np.exp(logits / temperature) * (correct | (np.arange(V) != 9))
    likely = chance > 0
    assert counts[~likely].sum() == 0 and (np.asarray(filled)[:, 5:] == 9).all()
    expected = (chance / chance.sum() * 5 * rows)[likely]
    assert chisquare(counts[likely], expected).pvalue > 1e-4


def test_a_perfect_generator_leaves_nothing_to_detect(clean):
    objective = ReplacedTokens(MASKED)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    certain = 1e3 * jax.nn.one_hot(batch["targets"], V)
    assert (objective.fill(certain, batch) == clean["tokens"]).all()
    never = dataclasses.replace(objective, correct=False)
    filled = never.fill(certain, batch)
    assert int((filled != clean["tokens"]).sum()) == int(batch["target_weights"].sum())


def test_the_released_codes_masks_repeat_positions():
    """19 of 128 drawn with replacement: about 13.8 % are distinct, and 85 % of them masked."""
    rows, length, vocab = 200, 128, 500
    masked = MaskedLM(4, vocab, (0, 2, 3), max_predictions=19, rate=0.15, rates=(0.85, 0.0))
    objective = ReplacedTokens(masked, legacy_with_replacement=True)
    tokens = np.random.default_rng(0).integers(5, vocab, (rows, length)).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = 2, 3
    batch = objective.corrupt(
        {
            "tokens": jnp.asarray(tokens),
            "segments": jnp.zeros((rows, length), jnp.int32),
            "mask": jnp.ones((rows, length), bool),
            "example": jnp.arange(rows, dtype=jnp.uint32),
            "copy": jnp.zeros(rows, jnp.uint32),
        },
        jax.random.key(0),
    )
    positions = np.asarray(batch["positions"])
    distinct = np.mean([len(set(row)) for row in positions])
    assert batch["target_weights"].sum() == 19 * rows
    assert distinct / length == pytest.approx(126 * (1 - (1 - 1 / 126) ** 19) / 128, abs=0.002)
    hidden = np.asarray(batch["tokens"] == 4)
    times = np.zeros((rows, length), int)
    np.add.at(times, (np.arange(rows)[:, None], positions), 1)
    assert hidden[times == 1].mean() == pytest.approx(0.85, abs=0.02)
    assert hidden[times == 2].mean() == pytest.approx(1 - 0.15**2, abs=0.02)
    assert not hidden[times == 0].any()
    # Two draws of a position give the floored mean of their ids.
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(rows, 19, vocab)), jnp.float32)
    filled = np.asarray(objective.fill(logits, batch))
    drawn = np.asarray(sample(logits, batch["uniform"]))
    row, column = map(int, np.argwhere(times == 2)[0])
    slots = np.flatnonzero(positions[row] == column)
    assert filled[row, column] == drawn[row, slots].sum() // 2


def test_the_same_rows_get_the_same_samples_in_any_batch(clean):
    objective = ReplacedTokens(MASKED)
    whole = jit(objective.corrupt)(clean, jax.random.key(0))
    part = objective.corrupt(jax.tree.map(lambda x: x[2:4], clean), jax.random.key(0))
    np.testing.assert_array_equal(whole["uniform"][2:4], part["uniform"])


def test_masks_and_samples_have_keys_of_their_own(clean, monkeypatch):
    used, row_keys = [], mask.row_keys

    def spy(key, batch):
        keys_B = row_keys(key, batch)
        used.append({tuple(words) for words in jax.random.key_data(keys_B).tolist()})
        return keys_B

    monkeypatch.setattr(mask, "row_keys", spy)
    ReplacedTokens(MASKED).corrupt(clean, jax.random.key(3))
    assert len(used) == 2 and all(len(keys) == B for keys in used)
    assert used[0].isdisjoint(used[1])


@pytest.mark.parametrize(
    ("sharing", "variant"),
    with_each_change(
        [("embeddings", "electra"), ("embeddings", "all_tokens"), ("all", "electra")],
        [("embeddings", variant) for variant in VARIANTS]
        + [("none", "electra"), ("all", "electra")],
    ),
)
def test_gradients_reach_what_they_should_and_nothing_else(clean, variant, sharing):
    width = 1.0 if sharing == "all" else 0.5
    objective = ReplacedTokens(MASKED, variant=variant, sharing=sharing, width=width)
    model, params = made(objective)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    losses = bound(model, lambda m, b: objective.losses(m, b, train=False)[0])

    def gradient(params, term):
        return jax.grad(lambda p: losses(p, batch)[term])(params)

    # both in one program, which computes what they share once
    gradients = jit(lambda params: [gradient(params, term) for term in ("model", "generator")])

    def size_of(tree):
        return max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))

    model_term, generator_term = gradients(params)
    assert all(size_of(model_term[head]) > 0 for head in VARIANTS[variant])
    assert size_of(model_term["encoder"]) > 0
    if sharing == "all":
        return
    # No gradient of what the model learns flows back through the samples.
    assert size_of(model_term["generator"]) == 0
    assert size_of(generator_term["generator"]) > 0
    encoder = generator_term["encoder"]
    tied = {"word", "position", "type", "norm"}
    assert all(size_of(encoder[name]) == 0 for name in encoder.keys() - tied)
    assert (size_of({n: encoder[n] for n in tied}) > 0) == (sharing == "embeddings")


def test_the_model_sees_the_original_nowhere_but_where_it_stands(clean):
    """With the samples fixed, other originals behind the masks change nothing but the labels."""
    objective = ReplacedTokens(MASKED)
    model, params = made(objective)
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    certain = 1e3 * jax.nn.one_hot(jnp.full_like(batch["positions"], 7), V)  # 7 is drawn
    hidden_from = batch | {"original": jnp.where(batch["tokens"] == 4, 9, batch["original"])}
    logits = jit(bound(model, lambda m, t, s, k: m.head("rtd")(m.encoder(t, s, k).last)))
    seen, other = (
        logits(params, objective.fill(certain, b), b["segments"], b["mask"])
        for b in (batch, hidden_from)
    )
    assert (batch["original"] != hidden_from["original"]).any()
    np.testing.assert_array_equal(seen, other)


def test_losses_against_numpy(clean):
    model, params = made(ReplacedTokens(MASKED, sharing="none"))
    for variant in ("electra", "electra_15"):
        objective = ReplacedTokens(MASKED, variant=variant, sharing="none")
        batch = jit(objective.corrupt)(clean, jax.random.key(3))

        def everything(m, b, objective=objective):
            texts = b["tokens"], b["segments"], b["mask"]
            logits = m.generate(m.generator_hidden(b["positions"], *texts, train=False))
            filled = objective.fill(logits, b)
            detected = m.head("rtd")(m.encoder(filled, b["segments"], b["mask"]).last)
            return objective.losses(m, b, train=False), filled, detected, logits.argmax(-1)

        (sums, metrics), filled, detected, best = jit(bound(model, everything))(params, batch)
        detected = np.asarray(detected, np.float64)
        replaced = np.asarray(filled != clean["tokens"])
        where = np.asarray(clean["mask"])
        if variant == "electra_15":
            used = np.asarray(batch["target_weights"]) > 0
            where = np.zeros_like(where)
            where[np.nonzero(used)[0], np.asarray(batch["positions"])[used]] = True
        probability = 1 / (1 + np.exp(-detected))
        loss = -np.where(replaced, np.log(probability), np.log1p(-probability))[where].sum()
        np.testing.assert_allclose(sums["model"], loss, rtol=1e-5)
        assert float(objective.weights(batch)["model"]) == where.sum()
        said = probability > 0.5
        right = (said == replaced)[where].mean()
        accuracy, weight = metrics["rtd_accuracy"]
        np.testing.assert_allclose(accuracy / weight, right, rtol=1e-6)
        used, size = np.asarray(batch["target_weights"]) > 0, np.asarray(clean["mask"]).sum()
        found = (said & replaced & where).sum()
        expected = {
            "rtd_recall": (found, (replaced & where).sum()),
            "rtd_precision": (found, (said & where).sum()),
            "generator_accuracy": ((best == batch["targets"])[used].sum(), used.sum()),
            "masked_fraction": (used.sum(), size),
            "replaced_fraction": (replaced.sum(), size),
        }
        for name, pair in expected.items():
            assert tuple(map(float, metrics[name])) == pair, name
        if variant == "electra":  # of what is masked, almost all is replaced
            area = roc_auc_score(replaced[where], detected[where])
            np.testing.assert_allclose(np.divide(*metrics["rtd_auc"]), area, rtol=1e-6)


def test_training_is_spared_the_ranking(clean):
    objective = ReplacedTokens(MASKED, sharing="none")
    model, params = made(objective)
    batch = jit(objective.corrupt)(clean, jax.random.key(3))
    for train in (True, False):
        run = bound(model, lambda m, b, train=train: objective.losses(m, b, train=train))
        _, metrics = jax.eval_shape(
            lambda p, b, run=run: run(p, b, rngs={"dropout": jax.random.key(0)}), params, batch
        )
        assert ("rtd_auc" in metrics) != train


def test_the_copy_mechanism_against_numpy(clean):
    objective = ReplacedTokens(MASKED, variant="all_tokens", sharing="none")
    model, params = made(objective)
    batch = jit(objective.corrupt)(clean, jax.random.key(3))

    def everything(m, b):
        texts = b["tokens"], b["segments"], b["mask"]
        logits = m.generate(m.generator_hidden(b["positions"], *texts, train=False))
        filled = objective.fill(logits, b)
        last = m.encoder(filled, b["segments"], b["mask"]).last
        return objective.losses(m, b, train=False), filled, m.mlm(last), m.copies(last)

    (sums, metrics), filled, words, copies = jit(bound(model, everything))(params, batch)
    words, copies = np.asarray(words, np.float64), np.asarray(copies, np.float64)
    softmax = np.exp(words - words.max(-1, keepdims=True))
    softmax /= softmax.sum(-1, keepdims=True)
    gate = 1 / (1 + np.exp(-copies))
    original = np.asarray(clean["tokens"])
    chance = np.take_along_axis(softmax, original[..., None], -1)[..., 0]
    likelihood = gate * (np.asarray(filled) == original) + (1 - gate) * chance
    likelihood = likelihood[np.asarray(clean["mask"])]
    np.testing.assert_allclose(sums["model"], -np.log(likelihood).sum(), rtol=1e-5)
    right = (likelihood > 0.5).sum()  # what is likelier than all else together
    assert 0 < right < len(likelihood)
    assert tuple(map(float, metrics["mlm_accuracy"])) == (right, len(likelihood))


@pytest.mark.parametrize("family", with_each_change(("electra", "albert"), BODIES))
@pytest.mark.parametrize("sharing", ["none", "embeddings", "all"])
def test_every_body_can_be_a_discriminator(clean, family, sharing):
    objective = ReplacedTokens(MASKED, sharing=sharing, width=1.0 if sharing == "all" else 0.5)
    model, params = made(objective, spec(family))
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    sums, _ = jit(bound(model, lambda m, b: objective.losses(m, b, train=False)))(params, batch)
    assert all(np.isfinite(value) and value > 0 for value in sums.values())
    assert ("generator" in params) == (sharing != "all")
    if sharing == "embeddings":
        assert not params["generator"]["encoder"].keys() & {"word", "position", "type", "norm"}


def test_a_generator_is_as_wide_and_deep_as_asked():
    objective = ReplacedTokens(MASKED, width=0.25, depth=0.5)
    part = objective.parts(spec(hidden_size=128, num_heads=8, num_layers=4, embedding_size=20))
    assert part["tied"] and part["generator"]["num_layers"] == 2
    generator = {n: part["generator"][n] for n in ("hidden_size", "num_heads", "embedding_size")}
    assert generator == dict(hidden_size=32, num_heads=2, embedding_size=20)
    shapes = made(objective)[1]["generator"]["encoder"]["stack"]
    assert list(shapes) == ["layer_0"] and shapes["layer_0"]["mlp_in"]["kernel"].shape == (8, 12)


def saved(seed=5, **changes):
    body = spec("bert", pooler=False)
    objective = dataclasses.replace(MASKED)
    model = create_model(body, objective)
    params = initial(model, jnp.zeros((1, L), jnp.int32), seed=seed)
    fields = dict(spec=body, heads=("mlm",), params=params, tokenizer=lambda: None)
    return SimpleNamespace(**fields | changes)


def test_a_generator_of_an_earlier_stage_samples_and_learns_no_more(clean):
    objective = ReplacedTokens(MASKED, sharing="none", trained=saved())
    model = create_model(spec(), objective)
    fresh = initial(model, jnp.zeros((1, L), jnp.int32))
    params, random = merge_params(fresh, objective.initial(spec()), "the generator")
    taken = params["generator"]["encoder"]["word"]["embedding"]
    np.testing.assert_array_equal(taken, objective.trained.params["encoder"]["word"]["embedding"])
    assert random and not any(name.startswith("generator/") for name in random)
    assert objective.frozen == ("^generator/",) and objective.coefficients["generator"] == 0
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    sums, _ = jit(bound(model, lambda m, b: objective.losses(m, b, train=False)))(params, batch)
    assert sums["model"] > 0
    with pytest.raises(FirthError, match="needs sharing='none', not 'embeddings'"):
        ReplacedTokens(MASKED, trained=saved())


def test_generators_that_cannot_fill_this_corpus_are_refused():
    tokenizer = SimpleNamespace(
        mask_id=4, vocab_size=V, pad_id=0, cls_id=2, sep_id=3, special_ids={0}, vocab=["x"] * V,
        word_starts=np.ones(V, bool),
    )  # fmt: skip
    fields = dict(mask_rate=0.85, random_rate=0.0, sharing="none", generator_from="g")

    def build(generator):
        return ReplacedTokens.from_config(
            dict(fields), Sources(tokenizer, load=lambda source: generator)
        )

    assert build(saved()).trained
    with pytest.raises(FirthError, match="generator_from=g has no masked LM head"):
        build(saved(heads=()))
    other = SimpleNamespace(vocab=["y"] * V)
    with pytest.raises(FirthError, match="generator_from=g has another vocabulary"):
        build(saved(tokenizer=lambda: other))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(variant="electric"), "objective.variant='electric' is unknown; one of electra,"),
        (dict(sharing="some"), "objective.sharing='some' is unknown"),
        (dict(sharing="all"), "needs width=1 and depth=1, not 0.25"),
        (dict(width=0.0), "must be greater than 0"),
        (dict(temperature=-1.0), "must be greater than 0"),
        (dict(masked=dataclasses.replace(MASKED, pairs="nsp")), "no pair objective"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(FirthError, match=message):
        ReplacedTokens(**{"masked": MASKED} | changes)
