"""Every recipe, size and argument: config, model and parameters, without computing anything."""

import functools
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from firth import recipe
from firth.data.tasks.load import get_task
from firth.errors import FirthError
from firth.models.bert import SIZES
from firth.models.model import create, parameter_count
from firth.run.experiment import create_objective
from firth.training.checkpoint import Checkpoints
from firth.training.optim import create_optimizer, create_schedule, named_leaves
from firth.training.partition import create_mesh
from firth.training.state import TrainState

VOCABULARY = 30522
TOKENIZER = SimpleNamespace(
    vocab_size=VOCABULARY,
    pad_id=0,
    unk_id=100,
    cls_id=101,
    sep_id=102,
    mask_id=103,
    special_ids=frozenset({0, 100, 101, 102, 103}),
    word_starts=np.ones(VOCABULARY, bool),
)

# Encoder and pooler of the published miniatures (systems.md section 21): rows are layers.
MINIATURES = {
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}
PUBLISHED = {
    f"{layers}x{width}": count
    for layers, counts in MINIATURES.items()
    for width, count in zip((128, 256, 512, 768), counts, strict=True)
} | {
    "tiny": 4_385_920,
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}


@functools.cache
def _shapes(spec, heads, labels):
    model = create(json.loads(spec), heads, num_labels=labels)
    return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]


def shapes_of(spec, objective, labels=2, **changes):
    """Parameter shapes of a config's model section; equal sections are traced once."""
    spec = dict(spec) | dict(vocab_size=VOCABULARY) | changes
    return _shapes(json.dumps(spec, sort_keys=True), tuple(objective.heads), labels)


def assert_the_rest_builds(config, params, tmp_path):
    """Optimiser, schedule, mesh and checkpoints of a config, as the loop builds them."""
    optimizer = create_optimizer(config.optimizer)
    state = jax.eval_shape(lambda p: TrainState.create(p, optimizer), params)
    assert state.step.shape == ()
    schedule = create_schedule(config.schedule, config.steps or 100)
    assert 0 <= float(schedule(1)) <= config.schedule.lr
    assert create_mesh(config.mesh).size == 8
    Checkpoints(tmp_path, **dict(config.checkpoint)).close()
    json.dumps(config.to_dict())
    return state


def test_every_shipped_recipe_is_tested_here():
    assert recipe.shipped() == [
        "adapt.py",
        "albert.py",
        "awd_lstm.py",
        "bert.py",
        "char_cnn_lstm.py",
        "char_lstm.py",
        "distilbert.py",
        "electra.py",
        "elmo.py",
        "feedforward.py",
        "finetune.py",
        "glove.py",
        "gpt.py",
        "gpt2.py",
        "logistic.py",
        "lstm.py",
        "maxent.py",
        "melis.py",
        "modernbert.py",
        "ngram.py",
        "quickstart.py",
        "rhn.py",
        "rnn.py",
        "roberta.py",
        "squad.py",
        "tagger.py",
        "transformer_xl.py",
        "ulmfit.py",
        "word2vec.py",
        "xlnet.py",
    ]
    assert PUBLISHED.keys() == SIZES.keys()


@pytest.mark.parametrize("size", SIZES)
def test_parameter_counts_are_the_published_ones(size):
    config = recipe.read_recipe(f"bert.py:{size}")
    params = shapes_of(config.model, create_objective(config.objective, TOKENIZER))
    assert parameter_count(params["encoder"]) == PUBLISHED[size]
    assert config.model.num_heads * 64 == config.model.hidden_size
    assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"float32"}


@pytest.mark.parametrize(
    ("size", "mlm", "nsp", "total"),
    [("base", 622_650, 1_538, 110_106_428), ("large", None, 2_050, 336_226_108)],
)
def test_counts_of_the_heads_and_the_whole(size, mlm, nsp, total):
    config = recipe.read_recipe(f"bert.py:{size}")
    params = shapes_of(config.model, create_objective(config.objective, TOKENIZER))
    assert parameter_count(params) == total
    assert parameter_count(params["nsp"]) == nsp
    assert mlm is None or parameter_count(params["mlm"]) == mlm


@pytest.mark.parametrize(
    ("size", "vocabulary", "count"),
    [
        ("base", 28_996, 108_310_272),
        ("base", 119_547, 177_853_440),
        ("base", 105_879, 167_356_416),
        ("base", 21_128, 102_267_648),
        ("large", 28_996, 333_579_264),
    ],
)
def test_counts_with_the_other_published_vocabularies(size, vocabulary, count):
    config = recipe.read_recipe(f"bert.py:{size}")
    objective = create_objective(config.objective, TOKENIZER)
    params = shapes_of(config.model, objective, vocab_size=vocabulary, scan=True)
    assert parameter_count(params["encoder"]) == count


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("length", [64, 128, 512])
@pytest.mark.parametrize("view", ["pairs", "packed"])
def test_every_size_and_argument_of_bert_builds(size, length, view):
    config = recipe.read_recipe(f"bert.py:{size},length={length},view={view}")
    objective = create_objective(config.objective, TOKENIZER)
    params = shapes_of(config.model, objective, scan=True)
    assert set(params) == {"encoder", "mlm"} | ({"nsp"} if view == "pairs" else set())
    small = size in ("tiny", "mini", "small")  # of which .2 are masked
    slots = {64: 13, 128: 26, 512: 103} if small else {64: 20, 128: 20, 512: 77}
    assert objective.max_predictions == slots[length]
    assert config.data.length == length <= config.model.max_length
    assert ("dupe_factor" in config.data) == (view == "pairs")


@pytest.mark.parametrize(
    ("name", "moments"),
    [
        ("bert.py", dict(b2=0.999, bias_correction=False)),
        ("bert.py:tiny,view=packed", dict(b2=0.98, bias_correction=True)),  # of a small size
    ],
)
def test_the_rest_of_a_pretraining_recipe_builds(name, moments, tmp_path):
    config = recipe.read_recipe(name)
    objective = create_objective(config.objective, TOKENIZER)
    params = shapes_of(config.model, objective, scan=True)
    state = assert_the_rest_builds(config, params, tmp_path)
    assert parameter_count(state.opt_state) == 2 * parameter_count(params) + 1
    same = dict(b1=0.9, eps=1e-6, weight_decay=0.01, clip_norm=1.0)
    assert config.optimizer.to_dict().items() >= (same | moments).items()


def test_the_papers_numbers_of_bert():
    config = recipe.read_recipe("bert.py:base")
    assert (config.batch_size, config.steps, config.schedule.lr) == (256, 1_000_000, 1e-4)
    schedule = create_schedule(config.schedule, config.steps)
    assert float(schedule(9_999)) == pytest.approx(1e-4 * 0.9999)
    assert float(schedule(10_000)) == pytest.approx(1e-4 * 0.99)
    assert float(schedule(1_000_000)) == 0
    assert recipe.read_recipe("bert.py").model == config.model


def test_a_size_that_is_not_published_is_refused():
    with pytest.raises(FirthError, match=r"no size 'huge'; choose one of .*large") as error:
        recipe.read_recipe("bert.py:huge")
    assert "Traceback" not in str(error.value)


def test_the_classifier_reads_the_mean_where_that_is_asked_for():
    """Otherwise the weights say what it reads."""
    assert "classifier_pooling" not in recipe.read_recipe("finetune.py:init=x").model
    config = recipe.read_recipe("finetune.py:init=x,pooling=mean")
    assert config.model.classifier_pooling == "mean"


GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")


@pytest.mark.parametrize("task", GLUE)
@pytest.mark.parametrize("frozen", [False, True])
def test_every_task_of_finetune_builds(task, frozen, tmp_path):
    config = recipe.read_recipe(f"finetune.py:task={task},init=somewhere,frozen={frozen}")
    assert config.init_from == "somewhere" and config.data.task == task
    known = get_task(task)
    objective = create_objective(config.objective, TOKENIZER, known)
    labels = max(len(known.labels), 1)
    body = recipe.read_recipe("bert.py:tiny").model.to_dict()
    spec = body | {k: v for k, v in config.model.items() if k != "from_init"}
    params = shapes_of(spec, objective, labels)
    assert set(params) == {"encoder", "classifier"}
    assert params["classifier"]["dense"]["kernel"].shape == (128, labels)
    assert labels == {"stsb": 1, "mnli": 3}.get(task, 2)
    assert objective.regression == (task == "stsb")
    state = assert_the_rest_builds(config, params, tmp_path)
    moments = [name for name in named_leaves(state.opt_state) if "/mu/" in name]
    body = [name for name in moments if "encoder/" in name and "encoder/pooler/" not in name]
    assert bool(body) != frozen
    assert any("encoder/pooler" in name for name in moments)
    assert any("classifier" in name for name in moments)


def test_finetune_of_ones_own_files_takes_its_columns_as_overrides():
    data = dict(train="a.csv", dev="b.csv", text="one,two", label="y", kind="regression")
    argv = ["--config=finetune.py:task=custom,init=m", "--workdir=w", "--config.seeds=0,1,2"]
    argv += [f"--config.data.{name}={value}" for name, value in data.items()]
    config, _ = recipe.from_command_line(argv, prog="firth train")
    assert config.data.to_dict().items() >= data.items() and config.seeds == "0,1,2"


def test_an_unknown_field_of_the_model_is_refused():
    model = recipe.read_recipe("bert.py:tiny").model.to_dict()
    for changes, message in (
        (dict(heads=3), "model has no field heads"),
        (dict(family="brt"), "model.family='brt' is unknown"),
        (dict(num_heads=3), "not a multiple of"),
        (dict(activation="swish"), "activation='swish' is unknown"),
        (dict(dtype="bf16"), "dtype='bf16' is unknown"),
        (dict(remat="half"), "remat='half' is unknown; one of none, full, dots, all_dots"),
        (dict(classifier_dropout=1), "classifier_dropout=1 should lie in"),
        (dict(dropout=1.0), "dropout=1.0 should lie in"),
        (dict(attention_dropout=-0.1), "attention_dropout=-0.1 should lie in"),
    ):
        with pytest.raises(FirthError, match=message):
            create(model | changes)


def test_an_input_beyond_the_position_table_is_refused():
    """Not read from beyond the table's end as NaN."""
    model = create(recipe.read_recipe("bert.py:tiny").model.to_dict() | dict(vocab_size=50))
    with pytest.raises(FirthError, match=r"513 tokens .*max_length=512"):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 513), jnp.int32))
