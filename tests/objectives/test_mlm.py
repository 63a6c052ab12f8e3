"""Masked LM: the loss against numpy in float64, and what no prediction may see."""

import dataclasses
import functools
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit
from helpers.rows import corrupt

from firth.errors import FirthError
from firth.models.model import create
from firth.objectives.mlm import COUNTINGS, MASKINGS, MaskedLM
from firth.objectives.objective import Sources

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, CLS, SEP)
B, L, V, P = 6, 18, 41, 4
SPEC = dict(
    family="bert",
    vocab_size=V,
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    intermediate_size=24,
    max_length=L,
    dropout=0.0,
    attention_dropout=0.0,
)
OBJECTIVE = MaskedLM(MASK, V, SPECIAL, max_predictions=P, pairs="nsp")


@pytest.fixture(scope="module")
def model():
    return create(SPEC, OBJECTIVE.heads)


@pytest.fixture(scope="module")
def params(model):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, L), int))["params"]
    return jax.tree.map(lambda s: rng.normal(size=s.shape, scale=0.3).astype(np.float32), shapes)


@pytest.fixture(scope="module")
def clean():
    """Rows of several lengths; the last completes the batch and is all padding."""
    rng = np.random.default_rng(1)
    size = np.array([[L], [11], [14], [L], [9], [0]])
    at = np.arange(L)
    tokens = rng.integers(5, V, (B, L))
    tokens[:, 0] = CLS
    tokens = np.where((at == size - 1) | (at == 5), SEP, tokens)
    present = at < size
    return {
        "tokens": np.where(present, tokens, PAD).astype(np.int32),
        "segments": ((at > 5) & present).astype(np.int32),
        "mask": present,
        "next": np.array([0, 1, 1, 0, 1, 0], np.int32),
        "example": np.arange(B, dtype=np.uint32),
        "copy": np.zeros(B, np.uint32),
    }


def corrupted(clean, seed=2, **changes):
    objective = dataclasses.replace(OBJECTIVE, **changes)
    return jax.device_get(corrupt(objective)(clean, jax.random.key(seed)))


def losses(model, params, batch, objective=OBJECTIVE, train=False):
    function = functools.partial(objective.losses, train=train)
    return nn.apply(lambda m, b: function(m, b), model)({"params": params}, batch)


@pytest.fixture(scope="module")
def value_and_gradient(model):
    def total(params, batch):
        sums, metrics = losses(model, params, batch)
        weights = OBJECTIVE.weights(batch)
        return sum(sums[t] / weights[t] for t in sums), metrics

    return jit(jax.value_and_grad(total, has_aux=True))


def log_softmax(x):
    x = np.asarray(x, np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_losses_equal_float64_over_the_full_vocabulary_and_every_position(
    model, params, clean, value_and_gradient
):
    batch = corrupted(clean)
    forward = jit(lambda *arrays: model.apply({"params": params}, *arrays))
    _, logits = forward(batch["tokens"], batch["segments"], batch["mask"])
    # A weight for every position of the full [B, L, V] computation.
    chosen = np.zeros((B, L))
    np.add.at(chosen, (np.arange(B)[:, None], batch["positions"]), batch["target_weights"])
    assert chosen.max() == 1 and chosen[5].sum() == 0 and chosen.sum() > 8
    originals = np.take_along_axis(log_softmax(logits["mlm"]), clean["tokens"][..., None], 2)
    mlm = -(originals[..., 0] * chosen).sum()
    rows = clean["mask"].any(1)
    nsp = -(log_softmax(logits["nsp"])[np.arange(B), clean["next"]] * rows).sum()
    (total, metrics), _ = value_and_gradient(params, batch)
    metrics = {name: tuple(map(float, pair)) for name, pair in metrics.items()}
    right = (logits["mlm"].argmax(-1) == clean["tokens"]) * chosen
    guesses = (logits["nsp"].argmax(-1) == clean["next"]) * rows
    expected = {
        "mlm_loss": (mlm, chosen.sum()),
        "mlm_accuracy": (right.sum(), chosen.sum()),
        "masked_fraction": (chosen.sum(), clean["mask"].sum()),
        "nsp_loss": (nsp, 5.0),
        "nsp_accuracy": (guesses.sum(), 5.0),
    }
    assert metrics.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_allclose(metrics[name], pair, rtol=2e-5, err_msg=name)
    np.testing.assert_allclose(total, mlm / chosen.sum() + nsp / 5, rtol=2e-5)


def test_weights_are_those_of_the_metrics(model, params, clean, value_and_gradient):
    for seed in (2, 3):
        batch = corrupted(clean, seed)
        metrics = value_and_gradient(params, batch)[0][1]
        weights = OBJECTIVE.weights(batch)
        assert weights.keys() == OBJECTIVE.coefficients.keys() == set(OBJECTIVE.heads)
        for term, weight in weights.items():
            assert float(weight) == float(metrics[f"{term}_loss"][1]) > 0


def test_rows_of_padding_weigh_nothing(clean):
    padded = dict(clean, mask=clean["mask"].copy())
    padded["mask"][-2:] = False
    weights = OBJECTIVE.weights(corrupted(padded))
    assert float(weights["nsp"]) == B - 2
    of_texts = OBJECTIVE.weights({k: v[:-2] for k, v in corrupted(clean).items()})
    assert float(weights["mlm"]) == float(of_texts["mlm"])


def test_sums_and_weights_of_parts_add_up_to_the_whole(model, params, clean):
    batch = corrupted(clean)
    run = jit(lambda b: losses(model, params, b)[0])
    whole = run(batch)
    parts = [run({k: v[i::2] for k, v in batch.items()}) for i in range(2)]
    weights = [OBJECTIVE.weights({k: v[i::2] for k, v in batch.items()}) for i in range(2)]
    for term in whole:
        np.testing.assert_allclose(whole[term], parts[0][term] + parts[1][term], rtol=1e-5)
        assert weights[0][term] + weights[1][term] == OBJECTIVE.weights(batch)[term]


def test_a_masked_original_leaves_no_trace_in_the_input(model, params, clean):
    """Other originals under [MASK]: the same input, the same logits bit for bit, other targets."""
    batch = corrupted(clean, rates=(1.0, 0.0))
    other = dict(clean, tokens=clean["tokens"].copy())
    for row in range(B):
        at = batch["positions"][row][batch["target_weights"][row] > 0]
        other["tokens"][row, at] = 5 + (other["tokens"][row, at] - 5 + 7) % (V - 5)
    changed = corrupted(other, rates=(1.0, 0.0))
    assert (changed["targets"] != batch["targets"]).sum() == batch["target_weights"].sum()
    forward = jit(lambda tokens: model.apply({"params": params}, tokens, None, clean["mask"]))
    for a, b in zip(
        jax.tree.leaves(forward(batch["tokens"])),
        jax.tree.leaves(forward(changed["tokens"])),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_the_gradient_of_a_prediction_reaches_no_masked_original(model, params, clean):
    """One word stands only at masked positions: its embedding gets nothing through the input."""
    word = 40
    tokens = np.where(clean["tokens"] == word, 5, clean["tokens"])
    picked = corrupted(clean)
    rows = np.arange(B)[:, None]
    used = picked["target_weights"] > 0
    tokens[np.broadcast_to(rows, used.shape)[used], picked["positions"][used]] = word
    batch = dict(clean, tokens=tokens)

    def gradient(rates):
        seen = corrupted(batch, rates=rates)
        np.testing.assert_array_equal(seen["targets"][used], word)

        def loss(inputs, params):
            """The true loss, with the table of the inputs apart from the tied output table."""
            split = params | {
                "encoder": params["encoder"] | {"word": {"embedding": inputs}},
            }
            hidden = model.apply(
                {"params": split},
                method=lambda m: m.encoder(seen["tokens"], seen["segments"], seen["mask"]).last,
            )
            logits = model.apply({"params": params}, hidden[rows, seen["positions"]], method="mlm")
            chosen = jnp.take_along_axis(nn.log_softmax(logits), seen["targets"][..., None], 2)
            return -(chosen[..., 0] * seen["target_weights"]).sum()

        return np.asarray(jit(jax.grad(loss))(params["encoder"]["word"]["embedding"], params))

    masked, kept = gradient((1.0, 0.0)), gradient((0.0, 0.0))
    assert (masked[word] == 0).all()
    assert np.abs(masked[MASK]).max() > 1e-4
    assert np.abs(kept[word]).max() > 1e-4, "the test could not have seen a leak"


def test_padding_has_exactly_no_influence(params, clean, value_and_gradient):
    """Garbage in padded positions and rows: loss, metrics and gradients equal bit for bit."""
    batch = corrupted(clean)
    rng = np.random.default_rng(3)
    garbage = dict(batch)
    padded = ~batch["mask"]
    garbage["tokens"] = np.where(padded, rng.integers(5, V, (B, L)), batch["tokens"]).astype(int)
    garbage["segments"] = np.where(padded, 1 - batch["segments"], batch["segments"])
    garbage["next"] = batch["next"].copy()
    garbage["next"][5] = 1
    garbage["targets"] = np.where(batch["target_weights"] > 0, batch["targets"], 17)
    found, again = value_and_gradient(params, batch), value_and_gradient(params, garbage)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    # No row reaches position 17 but the two full ones; without them its gradient is zero.
    short = {k: v[[1, 2, 4, 5, 1, 2]] for k, v in batch.items()}
    gradient = value_and_gradient(params, short)[1]["encoder"]["position"]["embedding"]
    assert (np.asarray(gradient[14:]) == 0).all() and np.abs(gradient[:14]).min() > 0


def test_without_pairs_there_is_one_head_and_one_term(clean):
    objective = dataclasses.replace(OBJECTIVE, pairs="none")
    batch = corrupted(clean, pairs="none")
    model = create(SPEC, objective.heads)
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch["tokens"])["params"]
    assert set(shapes) == {"encoder", "mlm"}
    sums, metrics = jax.eval_shape(lambda p: losses(model, p, batch, objective), shapes)
    assert set(sums) == set(objective.coefficients) == set(objective.weights(batch)) == {"mlm"}
    assert set(metrics) == {"mlm_loss", "mlm_accuracy", "masked_fraction"}


def test_bfloat16_gives_float32_losses_near_those_of_float32(params, clean, value_and_gradient):
    batch = corrupted(clean)
    model = create(SPEC | {"dtype": "bfloat16"}, OBJECTIVE.heads)
    sums, metrics = jit(lambda p: losses(model, p, batch))(params)
    assert {x.dtype for x in jax.tree.leaves((sums, metrics))} == {jnp.dtype("float32")}
    exact = value_and_gradient(params, batch)[0][1]
    for term in sums:
        np.testing.assert_allclose(sums[term], exact[f"{term}_loss"][0], rtol=0.03)


FIELDS = dict(masking="token", rate=0.15, max_predictions=20, mask_rate=0.8, random_rate=0.1)
TOKENIZER = SimpleNamespace(
    mask_id=4,
    pad_id=0,
    cls_id=2,
    sep_id=3,
    vocab_size=V,
    word_starts=np.ones(V, bool),
    special_ids=frozenset({0, 1, 2, 3, 4}),
)


def test_from_config_takes_its_ids_from_the_tokenizer():
    objective = MaskedLM.from_config(dict(FIELDS, pairs="nsp"), Sources(TOKENIZER))
    assert set(objective.special_ids) == {PAD, CLS, SEP} and objective.mask_id == MASK
    assert objective.rates == (0.8, 0.1) and objective.vocab_size == V
    assert objective.reserved_ids == (0, 1, 2, 3, 4)
    alone = SimpleNamespace(**vars(TOKENIZER) | {"sep_id": None})
    assert set(MaskedLM.from_config(dict(FIELDS), Sources(alone)).special_ids) == {PAD, CLS}


def test_a_config_without_the_newer_fields_is_that_of_bert():
    objective = MaskedLM.from_config(dict(FIELDS), Sources(TOKENIZER))
    assert (objective.counting, objective.mask_specials, objective.random_specials) == (
        "round",
        False,
        True,
    )


def test_a_config_may_ask_for_what_roberta_does():
    roberta = dict(counting="floor", mask_specials=True, random_specials=False)
    objective = MaskedLM.from_config(FIELDS | roberta, Sources(TOKENIZER))
    assert {name: getattr(objective, name) for name in roberta} == roberta


@pytest.mark.parametrize(("fields", "smoothing"), [({}, 0.7), ({"smoothing": 0.5}, 0.5)])
def test_a_config_by_frequency_gets_its_weights_from_the_counts(fields, smoothing):
    counts = np.arange(V) ** 2
    fields = FIELDS | {"masking": "frequency"} | fields
    weights = MaskedLM.from_config(fields, Sources(TOKENIZER, counts=lambda: counts)).token_weights
    assert set(np.flatnonzero(weights == 0)) == {0, 1, 2, 3, 4}
    np.testing.assert_allclose(weights[[5, 40]], [25**-smoothing, 1600**-smoothing], rtol=1e-6)


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("counting", COUNTINGS)
def test_every_masking_and_counting_gives_batches_of_the_same_form(clean, masking, counting):
    fields = FIELDS | {"masking": masking, "counting": counting}
    objective = MaskedLM.from_config(fields, Sources(TOKENIZER, counts=lambda: np.ones(V)))
    batch = jit(objective.corrupt)(clean, jax.random.key(0))
    for name in ("positions", "targets", "target_weights"):
        assert batch[name].shape == (B, L)
        assert batch[name].dtype == (np.float32 if "weights" in name else np.int32)
    assert 0 < batch["target_weights"].sum() < B * L and batch["target_weights"][5].sum() == 0
    used = np.asarray(batch["target_weights"]) > 0
    assert not np.isin(np.asarray(batch["targets"])[used], SPECIAL).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masking": "spans"}, "objective.masking='spans' is unknown; one of .*'ngram', 'span'"),
        ({"counting": "ceil"}, "objective.counting='ceil' is unknown; one of .'round', 'floor'"),
        ({"pairs": "sos"}, "objective.pairs='sos' is unknown"),
        ({"rate": 0.0}, "select nothing"),
        ({"rate": 1.5}, "select nothing"),
        ({"max_predictions": 0}, "select nothing"),
        ({"mask_rate": 0.95, "random_rate": 0.1}, "add up to more than 1"),
        ({"mask_rate": -0.1}, "negative"),
        ({"masking": "frequency"}, "objective.masking='frequency' needs token_weights"),
        ({"masking": "frequency", "token_weights": np.zeros(V)}, "from 0.0 to 0.0 .*some positive"),
        ({"masking": "frequency", "token_weights": np.full(V, -1.0)}, "expected finite .*negative"),
        ({"masking": "frequency", "token_weights": np.full(V, np.inf)}, "expected finite"),
        ({"masking": "frequency", "token_weights": np.ones(V - 1)}, r"\(40,\) .* expected \(41,\)"),
        ({"masking": "word", "mask_specials": True}, "mask_specials=True with masking='word'"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(FirthError, match=message):
        MaskedLM.from_config(FIELDS | changes, Sources(TOKENIZER))


def test_random_tokens_need_a_vocabulary_with_tokens_that_are_not_special():
    tokenizer = SimpleNamespace(**vars(TOKENIZER) | {"special_ids": frozenset(range(V))})
    with pytest.raises(FirthError, match=r"random_specials=False leaves no .* all 41 tokens"):
        MaskedLM.from_config(FIELDS | {"random_specials": False}, Sources(tokenizer))


def test_a_tokenizer_without_a_mask_or_word_starts_is_refused():
    with pytest.raises(FirthError, match="mask token"):
        MaskedLM.from_config(
            dict(FIELDS), Sources(SimpleNamespace(**vars(TOKENIZER) | {"mask_id": None}))
        )


@pytest.mark.parametrize("masking", ["word", "ngram", "span"])
def test_a_masking_of_words_needs_the_word_starts_of_its_vocabulary(masking):
    for starts, message in (
        (None, f"objective.masking='{masking}' needs a tokenizer that keeps word starts"),
        (np.ones(V + 1, bool), r"word_starts of shape \(42,\) .* expected \(41,\)"),
    ):
        tokenizer = SimpleNamespace(**vars(TOKENIZER) | {"word_starts": starts})
        with pytest.raises(FirthError, match=message):
            MaskedLM.from_config(FIELDS | {"masking": masking}, Sources(tokenizer))
