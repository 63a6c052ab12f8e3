"""Twenty steps of training against PyTorch: same weights, batches and masks, the same losses.

Dropout is off, both sides run AdamW in float32. For ELECTRA both networks train, on one set of
embeddings, and the samples are drawn from torch's own logits.
"""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
from helpers.cases import nightly, with_each_change
from helpers.published.bert import make_bert
from helpers.published.families import SHAPES, make_model

from firth.models.model import create
from firth.objectives import mask
from firth.objectives.clm import CausalLM
from firth.objectives.mlm import MaskedLM
from firth.objectives.rtd import ReplacedTokens
from firth.objectives.sample import sample
from firth.recipe import completed
from firth.run.experiment import create_model
from firth.run.program import make_step
from firth.training import optim
from firth.training.state import TrainState
from firth.weights.read import read_model

B, L, STEPS, RATE = 6, 14, 20, 2e-3
FIELDS = ml_collections.ConfigDict(
    dict(
        seed=3,
        rng="threefry2x32",
        accumulate=2,
        objective={},
        optimizer=dict(
            name="adamw",
            b1=0.9,
            b2=0.98,
            eps=1e-6,
            bias_correction=True,
            weight_decay=0.01,
            decay_exclude=(),
            clip_norm=0.0,
            multipliers=(),
            freeze=(),
        ),
    )
)
CONFIG = completed(FIELDS)


def batches(spec):
    """STEPS batches of random tokens, the last rows padded."""
    rng, pad = np.random.default_rng(0), spec.get("pad_id", 0)
    for step in range(STEPS):
        mask_BL = np.arange(L) < np.array([14, 14, 14, 9, 11, 14])[:, None]
        tokens = rng.integers(6, spec["vocab_size"], (B, L))
        yield {
            "tokens": jnp.asarray(np.where(mask_BL, tokens, pad), jnp.int32),
            "segments": jnp.zeros((B, L), jnp.int32),
            "mask": jnp.asarray(mask_BL),
            "next": jnp.asarray(rng.integers(2, size=B), jnp.int32),
            "example": jnp.arange(B, dtype=jnp.uint32) + B * step,
            "copy": jnp.zeros(B, jnp.uint32),
        }


def corrupted(objective, batch, step):
    """What the step makes of the batch: its keys hang on the seed and the step."""
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(CONFIG.seed), step))
    return jax.tree.map(np.array, objective.corrupt(batch, key))


def train_firth(model, objective, params, rows, rate=RATE):
    optimizer = optim.create_optimizer(CONFIG.optimizer)
    step = jax.jit(make_step(model, objective, optimizer, lambda t: rate, CONFIG))
    state = TrainState.create(jax.tree.map(jnp.asarray, params), optimizer)
    losses = []
    for batch in rows:
        state, measured, _ = step(state, batch)
        losses.append(float(measured["loss"][0]))
    return losses


def adamw(torch, parameters, rate=RATE):
    return torch.optim.AdamW(parameters, rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)


def labels_of(torch, batch):
    labels = np.full((B, L), -100)
    rows, slots = np.nonzero(batch["target_weights"])
    labels[rows, batch["positions"][rows, slots]] = batch["targets"][rows, slots]
    return torch.tensor(labels)


def inputs(torch, batch, tokens=None):
    tokens = batch["tokens"] if tokens is None else tokens
    return dict(
        input_ids=torch.tensor(np.asarray(tokens)).long(),
        attention_mask=torch.tensor(batch["mask"]).long(),
    )


def without_dropout(model):
    for module in model.modules():
        if hasattr(module, "p") and type(module).__name__ == "Dropout":
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return model.train()


PAIRS = {"bert": "nsp", "albert": "sop"}


CAUSAL = ("gpt", "gpt2")


@pytest.mark.parametrize("family", with_each_change(("gpt2",), CAUSAL))
def test_causal_language_modelling_tracks_pytorch(torch, tmp_path, family):
    theirs = make_model(tmp_path / "m", family, next(iter(SHAPES[family])))
    saved = read_model(tmp_path / "m")
    objective = CausalLM()
    still = dict(dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0)
    model = create(saved.spec | still, objective.heads)
    rows = list(batches(saved.spec))
    ours = train_firth(model, objective, saved.params, rows)

    without_dropout(theirs)
    optimizer = adamw(torch, theirs.parameters())
    losses = []
    for batch in rows:
        optimizer.zero_grad()
        batch = jax.tree.map(np.asarray, batch)
        labels = torch.tensor(np.where(batch["mask"], batch["tokens"], -100)).long()
        loss = theirs(**inputs(torch, batch), labels=labels).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    np.testing.assert_allclose(ours, losses, rtol=2e-4)
    assert losses[-1] < losses[0]


OTHERS = [name for name in SHAPES if name not in (*CAUSAL, "albert")]


@pytest.mark.parametrize(
    "family",
    ["bert", pytest.param("albert", marks=pytest.mark.slow), *map(nightly, OTHERS)],
)
def test_masked_language_modelling_tracks_pytorch(torch, tmp_path, family):
    if family == "bert":
        theirs = make_bert(tmp_path / "m", "BertForPreTraining", "gelu")
    else:
        name = "ElectraForMaskedLM" if family == "electra" else None
        theirs = make_model(tmp_path / "m", family, next(iter(SHAPES[family])), name)
    saved = read_model(tmp_path / "m")
    pairs = PAIRS.get(family, "none")
    objective = MaskedLM(
        5, saved.spec["vocab_size"], (0, 1), rate=0.3, max_predictions=4, pairs=pairs
    )
    still = dict(dropout=0.0, attention_dropout=0.0)
    model = create(saved.spec | still, objective.heads)
    rows = list(batches(saved.spec))
    ours = train_firth(model, objective, saved.params, rows)

    without_dropout(theirs)
    optimizer = adamw(torch, theirs.parameters())
    losses = []
    for step, batch in enumerate(rows):
        batch = corrupted(objective, batch, step)
        extra = dict(labels=labels_of(torch, batch))
        if pairs != "none":
            name = "next_sentence_label" if family == "bert" else "sentence_order_label"
            extra[name] = torch.tensor(batch["next"]).long()
        optimizer.zero_grad()
        loss = theirs(**inputs(torch, batch), **extra).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(ours, losses, rtol=2e-4)
    assert losses[-1] != pytest.approx(losses[0], rel=0.01)


@pytest.mark.slow
def test_replaced_token_detection_tracks_pytorch(torch, tmp_path):
    discriminator = make_model(tmp_path / "d", "electra", "projected", "ElectraForPreTraining")
    generator = make_model(
        tmp_path / "g",
        "electra",
        "projected",
        "ElectraForMaskedLM",
        seed=1,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=24,
    )
    generator.electra.embeddings = discriminator.electra.embeddings
    generator.generator_lm_head.weight = discriminator.electra.embeddings.word_embeddings.weight
    one, two = read_model(tmp_path / "d"), read_model(tmp_path / "g")
    masked = MaskedLM(5, one.spec["vocab_size"], (0, 1), rate=0.3, max_predictions=4)
    objective = ReplacedTokens(masked, weight=50.0)
    still = dict(dropout=0.0, attention_dropout=0.0)
    two_spec = two.spec | still
    object.__setattr__(objective, "parts", lambda spec: {"generator": two_spec, "tied": True})
    model = create_model(one.spec | still, objective)
    body = {k: v for k, v in two.params["encoder"].items() if k in ("project", "stack")}
    params = one.params | {"generator": {"encoder": body, "mlm": two.params["mlm"]}}
    rows = list(batches(one.spec))
    rate = RATE / 10  # a draw that falls otherwise would end the comparison
    ours = train_firth(model, objective, params, rows, rate)

    without_dropout(discriminator), without_dropout(generator)
    both = {id(p): p for m in (discriminator, generator) for p in m.parameters()}
    optimizer = adamw(torch, list(both.values()), rate)
    losses, replaced = [], 0
    for step, batch in enumerate(rows):
        batch = corrupted(objective, batch, step)
        optimizer.zero_grad()
        out = generator(**inputs(torch, batch), labels=labels_of(torch, batch))
        logits = jnp.asarray(out.logits.detach().numpy())
        drawn = sample(mask.gather(logits, batch["positions"]), batch["uniform"])
        filled = mask.scatter(
            jnp.asarray(batch["original"]), batch["positions"], batch["target_weights"], drawn
        )
        changed = np.asarray(filled) != batch["original"]
        replaced += changed.sum()
        found = discriminator(**inputs(torch, batch, filled))
        where = torch.tensor(batch["mask"])
        detected = torch.nn.functional.binary_cross_entropy_with_logits(
            found.logits[where], torch.tensor(changed).float()[where]
        )
        loss = out.loss + 50 * detected
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert replaced > 20
    np.testing.assert_allclose(ours, losses, rtol=5e-4)
