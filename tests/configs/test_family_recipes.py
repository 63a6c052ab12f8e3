"""The recipes of every family but BERT: counts, hyperparameters, the grid of the config."""

import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firth import recipe
from firth.errors import FirthError
from firth.models.model import create, parameter_count
from firth.run.experiment import create_model, create_objective
from firth.training.optim import create_optimizer, create_schedule
from firth.training.partition import create_mesh, shardings_of
from firth.training.state import TrainState


def tokenizer(size):
    """What recipes need of a tokenizer with so many tokens."""
    return SimpleNamespace(
        vocab_size=size,
        pad_id=1,
        unk_id=3,
        cls_id=0,
        sep_id=2,
        mask_id=4,
        special_ids=frozenset(range(5)),
        word_starts=np.ones(size, bool),
    )


@functools.cache
def _count(spec, heads, part):
    model = create(json.loads(spec), heads)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]
    return parameter_count(shapes[part] if part else shapes)


def count(name, vocab, heads=(), part=None, **changes):
    spec = dict(recipe.read_recipe(name).model) | dict(vocab_size=vocab, scan=True) | changes
    return _count(json.dumps(spec | ({"pad_id": 1} if "pad_id" in spec else {})), heads, part)


# systems.md section 21, of the published models
@pytest.mark.parametrize(
    ("name", "vocab", "heads", "changes", "expected"),
    [
        ("roberta.py:base", 50265, (), dict(pooler=True), 124_645_632),
        ("roberta.py:base", 50265, ("mlm",), {}, 124_697_433),
        ("roberta.py:base", 50265, ("mlm",), dict(type_vocab_size=0), 124_696_665),
        ("roberta.py:large", 50265, (), dict(pooler=True), 355_359_744),
        ("roberta.py:large", 50265, ("mlm",), {}, 355_412_057),
        ("albert.py:base", 30000, (), {}, 11_683_584),
        ("albert.py:large", 30000, (), {}, 17_683_968),
        ("albert.py:xlarge", 30000, (), {}, 58_724_864),
        ("albert.py:xxlarge", 30000, (), {}, 222_595_584),
        ("distilbert.py:base", 30522, (), {}, 66_362_880),
        ("distilbert.py:base", 30522, ("mlm",), {}, 66_985_530),
        ("distilbert.py:base", 28996, (), {}, 65_190_912),
        ("electra.py:small", 30522, (), {}, 13_483_008),
        ("electra.py:small", 30522, ("rtd",), {}, 13_549_057),
        ("electra.py:small", 30522, ("mlm",), {}, 13_546_682),
        ("electra.py:base", 30522, (), {}, 108_891_648),
        ("electra.py:base", 30522, ("rtd",), {}, 109_483_009),
        ("electra.py:large", 30522, (), {}, 334_092_288),
        ("electra.py:large", 30522, ("rtd",), {}, 335_142_913),
    ],
)
def test_parameter_counts_are_the_published_ones(name, vocab, heads, changes, expected):
    assert count(name, vocab, heads, **changes) == expected


@pytest.mark.parametrize(
    ("size", "mlm", "sop"),
    [
        ("base", 128_688, 1_538),
        ("large", 161_456, 2_050),
        ("xlarge", 292_528, 4_098),
        ("xxlarge", 554_672, 8_194),
    ],
)
def test_counts_of_alberts_heads(size, mlm, sop):
    name = f"albert.py:{size}"
    assert count(name, 30000, ("mlm", "sop"), "mlm") == mlm
    assert count(name, 30000, ("mlm", "sop"), "sop") == sop


@pytest.mark.parametrize("size", ["base", "large"])
def test_counts_of_modernbert_are_those_of_transformers(size):
    import torch
    import transformers

    spec = recipe.read_recipe(f"modernbert.py:{size}").model
    config = transformers.ModernBertConfig(
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
    )
    with torch.device("meta"):
        theirs = transformers.ModernBertForMaskedLM(config)
    expected = sum(p.numel() for p in theirs.parameters())
    assert count(f"modernbert.py:{size}", 50368, ("mlm",)) == expected


def shapes_of(name, vocab=30522, *overrides):
    config = recipe.read_recipe(name)
    for field, value in overrides:
        config[field].update(value)
    scans = not name.startswith(("awd_lstm", "char_", "melis", "rhn"))  # whose layers differ
    spec = dict(config.model) | dict(vocab_size=vocab, scan=scans)
    if "pad_id" in spec:
        spec["pad_id"] = 1
    counts = functools.partial(np.ones, vocab)
    objective = create_objective(config.objective, tokenizer(vocab), body=spec, counts=counts)
    model = create_model(spec, objective)
    init = functools.partial(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))
    return config, objective, jax.eval_shape(init)["params"]


@pytest.mark.parametrize(
    ("size", "total"), [("small", 14_196_219), ("base", 119_386_427), ("large", 354_655_291)]
)
def test_electras_two_networks_count_as_published(size, total):
    _, _, params = shapes_of(f"electra.py:{size}")
    assert parameter_count(params) == total


RECIPES = (
    *(f"roberta.py:{size}" for size in ("tiny", "mini", "small", "base", "large")),
    *(f"albert.py:{s}" for s in ("tiny", "mini", "small", "base", "large", "xlarge", "xxlarge")),
    *(f"electra.py:{size}" for size in ("tiny", "mini", "small", "base", "large")),
    *(f"electra.py:tiny,variant={v}" for v in ("electra_15", "replace_mlm", "all_tokens", "mlm")),
    *(f"modernbert.py:{size}" for size in ("tiny", "mini", "small", "base", "large")),
    "modernbert.py:tiny,objective=rtd",
    *(f"xlnet.py:{size}" for size in ("tiny", "mini", "small", "base", "large")),
    "xlnet.py:tiny,memory=0",
    *(f"gpt.py:{size}" for size in ("tiny", "mini", "small", "base")),
    *(f"gpt2.py:{size}" for size in ("tiny", "base", "medium", "large", "xl")),
    *(f"transformer_xl.py:{s}" for s in ("tiny", "mini", "ptb", "enwik8", "wt103", "wt103_large")),
    *(f"lstm.py:{size}" for size in ("tiny", "small", "medium", "large")),
    *(f"char_lstm.py:{size}" for size in ("tiny", "small", "medium")),
    *(f"rnn.py:{size}" for size in ("tiny", "small", "medium")),
    *(f"awd_lstm.py:{size}" for size in ("tiny", "medium")),
    *(f"melis.py:{size}" for size in ("tiny", "10m_d1", "24m_d2", "24m_d4")),
    *(f"char_cnn_lstm.py:{size}" for size in ("tiny", "small", "large")),
    *(f"rhn.py:{size}" for size in ("tiny", "small", "medium")),
    *(f"elmo.py:{size}" for size in ("tiny", "small", "medium", "original")),
    *(f"feedforward.py:{size}" for size in ("tiny", "base", "small", "medium")),
    *(f"feedforward.py:small,kind={kind}" for kind in ("direct", "log_bilinear")),
)


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_and_every_leaf_has_a_sharding(name):
    config, objective, params = shapes_of(name)
    assert {"encoder", *objective.heads} - {"lm"} <= set(params)  # an LM head may have no bias
    optimizer = create_optimizer(config.optimizer)
    model = create(dict(config.model) | dict(vocab_size=99), ())
    recurrent = name.startswith(("lstm", "char_", "rnn", "awd_lstm", "melis", "rhn", "elmo"))

    def init(params):
        return TrainState.create(params, optimizer, objective.carry(model, 8))

    state = jax.eval_shape(init, params)
    assert bool(state.carry) == (recurrent or bool(config.objective.get("memory")))
    shardings = shardings_of(state, create_mesh(dict(data=1, fsdp=2, tensor=4)))
    for sharding in jax.tree.leaves(shardings.carry):
        assert sharding.spec[0] == ("data", "fsdp")  # rows, like those of the batch
    schedule = create_schedule(config.schedule, config.steps)
    assert 0 < float(schedule(config.steps // 2)) <= np.float32(config.schedule.lr)


def test_a_recipe_of_gradient_descent_has_no_moments_to_give():
    config = recipe.read_recipe("lstm.py:tiny", ["--config.optimizer.name=adamw"])
    with pytest.raises(FirthError, match=r"optimizer\.name='adamw' needs optimizer\.b1, which"):
        create_optimizer(config.optimizer)
    plain = recipe.read_recipe("lstm.py:tiny", ["--config.optimizer.clip_norm=0.0"]).optimizer
    optimizer, gradient = create_optimizer(plain), {"x": jnp.full(3, 7.0)}
    direction, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    assert direction["x"].tolist() == [7, 7, 7]


def test_the_papers_numbers():
    roberta = recipe.read_recipe("roberta.py:base")
    assert (roberta.batch_size, roberta.steps, roberta.schedule.lr) == (8192, 500_000, 6e-4)
    schedule = create_schedule(roberta.schedule, roberta.steps)
    assert float(schedule(24_000)) == pytest.approx(6e-4) and float(schedule(500_000)) == 0
    albert = recipe.read_recipe("albert.py:base")
    assert (albert.batch_size, albert.steps, albert.schedule.lr) == (4096, 125_000, 1.76e-3)
    assert (
        albert.model.dropout == 0 == recipe.read_recipe("albert.py:xxlarge,version=1").model.dropout
    )
    assert recipe.read_recipe("albert.py:base,version=1").model.dropout == 0.1
    small, large = recipe.read_recipe("electra.py:small"), recipe.read_recipe("electra.py:large")
    assert (small.batch_size, small.steps, small.objective.max_predictions) == (128, 1_000_000, 19)
    assert (large.objective.rate, large.objective.max_predictions) == (0.25, 130)
    assert recipe.read_recipe("electra.py:base").objective.max_predictions == 79


@pytest.mark.parametrize(
    ("name", "overrides", "heads"),
    [
        ("roberta.py:tiny", [("objective", dict(name="rtd", mask_specials=False))], {"rtd"}),
        ("albert.py:tiny", [("objective", dict(name="rtd", pairs="none"))], {"rtd"}),
        ("bert.py:tiny", [("objective", dict(pairs="sop"))], {"mlm", "sop"}),
        ("albert.py:tiny", [("objective", dict(pairs="none"))], {"mlm"}),
    ],
)  # fmt: skip
def test_objective_and_body_are_independent(name, overrides, heads):
    _, objective, params = shapes_of(name, 30522, *overrides)
    assert set(objective.heads) == heads
    assert set(params) - {"encoder", "generator"} == heads


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("roberta.py:huge", "RoBERTa has no size 'huge'"),
        ("albert.py:huge", "ALBERT has no size 'huge'"),
        ("electra.py:huge", "ELECTRA has no size 'huge'"),
        ("distilbert.py:huge", "DistilBERT has no size 'huge'"),
        ("modernbert.py:huge", "ModernBERT has no size 'huge'"),
        ("albert.py:base,version=3", "version=3; expected 1 or 2"),
        ("electra.py:small,variant=electric", "variant='electric' is unknown; one of electra,"),
        ("modernbert.py:base,objective=nsp", "objective='nsp'; expected mlm or rtd"),
    ],
)
def test_arguments_that_do_not_exist_are_refused(name, message):
    with pytest.raises(FirthError, match=message):
        recipe.read_recipe(name)
