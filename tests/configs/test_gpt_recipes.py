"""The recipes of GPT and GPT-2: sizes, hyperparameters, and a run from text to generated text."""

import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import nightly
from helpers.runs import arguments, logged, make_corpus

import firth
from firth import recipe
from firth.cli import main
from firth.errors import FirthError
from firth.models import gpt, gpt2
from firth.models.model import create, parameter_count
from firth.run.experiment import create_objective
from firth.training.optim import create_optimizer, create_schedule, named_leaves
from firth.training.partition import create_mesh, shardings_of
from firth.training.state import TrainState

CONFIGS = Path(__file__).parents[2] / "configs"
SIZES = [f"gpt.py:{size}" for size in gpt.SIZES] + [f"gpt2.py:{size}" for size in gpt2.SIZES]


def read(name):
    return recipe.read_recipe(f"{CONFIGS}/{name}")


@functools.cache
def shapes(spec, heads):
    model = create(json.loads(spec), heads)
    return jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]


def built(config, vocab=50257):
    """(parameter shapes, objective) of a recipe."""
    tokenizer = SimpleNamespace(vocab_size=vocab, special_ids=frozenset({0}), word_starts=None)
    spec = dict(config.model) | dict(vocab_size=vocab, scan=True)
    objective = create_objective(config.objective, tokenizer, body=spec)
    return shapes(json.dumps(spec, sort_keys=True), tuple(objective.heads)), objective


@pytest.mark.parametrize("name", SIZES)
def test_every_size_builds(name):
    config = read(name)
    params, objective = built(config)
    assert objective.heads == ("lm",) and set(params) == {"encoder"}
    optimizer = create_optimizer(config.optimizer)
    state = jax.eval_shape(lambda p: TrainState.create(p, optimizer), params)
    shardings_of(state, create_mesh())
    json.dumps(config.to_dict())
    assert config.data.length <= config.model.max_length


def test_the_papers_numbers():
    config = read("gpt.py")
    assert parameter_count(built(config, 40478)[0]) == 116_534_784
    assert (config.batch_size, config.data.length) == (64, 512)
    schedule = create_schedule(config.schedule, config.steps)
    assert float(schedule(1000)) == pytest.approx(1.25e-4)
    assert float(schedule(2000)) == pytest.approx(2.5e-4)
    assert float(schedule(config.steps)) == pytest.approx(0, abs=1e-9)
    halfway = 2000 + (config.steps - 2000) // 2
    assert float(schedule(halfway)) == pytest.approx(1.25e-4, rel=1e-4)
    assert config.model.matrix_dropout and config.model.softmax_over_all
    config = read("gpt2.py")
    assert parameter_count(built(config)[0]) == 124_439_808
    assert (config.batch_size, config.data.length) == (512, 1024)
    assert read("gpt2.py:xl,length=2048").model.max_length == 2048


@pytest.mark.parametrize("name", ["gpt.py:tiny", "gpt2.py:tiny"])
def test_biases_and_gains_are_not_decayed(name):
    config = read(name)
    params, _ = built(config)
    excluded = [
        path
        for path in named_leaves(params)
        if any(re.search(pattern, path) for pattern in config.optimizer.decay_exclude)
    ]
    assert all(path.endswith(("/bias", "/scale")) for path in excluded)
    vectors = [path for path in named_leaves(params) if path.endswith(("/bias", "/scale"))]
    assert sorted(excluded) == sorted(vectors)


def test_an_unknown_size_is_refused():
    with pytest.raises(FirthError, match=r"GPT-2 has no size 'huge'; choose one of .*xl"):
        read("gpt2.py:huge")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    corpus = make_corpus(folder / "corpus.txt")
    options = f"--input {corpus} --tokenizer {folder}/tok --train-tokenizer bpe --vocab-size 400"
    assert main(f"prepare {options} --sentences line --output {folder}/store".split()) == 0
    return folder / "store"


@pytest.mark.slow
@pytest.mark.parametrize("name", [nightly("gpt"), "gpt2"])
def test_text_is_generated_by_a_run_and_by_what_it_publishes(name, store, tmp_path, capsys):
    """Trained until it has learnt that words of the corpus follow one another."""
    fields = {"model.intermediate_size": 128, "schedule.lr": 3e-3, "steps": 80, "eval.every": 80}
    where = f"{CONFIGS}/{name}.py:tiny,length=32"
    workdir = tmp_path / "run"
    assert main(["train", *arguments(store, workdir, where, **fields)]) == 0
    losses = [line["train/loss"] for line in logged(workdir) if "train/loss" in line]
    assert losses[0] > 5 and losses[-1] < 4.2
    assert main(["convert", "--from", str(workdir), "--to", str(tmp_path / "published")]) == 0
    capsys.readouterr()
    shown = []
    for model in (workdir, tmp_path / "published"):
        options = ["--prompt", "the bank", "--tokens=20", "--top-k=20"]
        assert main(["generate", "--model", str(model), *options]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] and shown[0].startswith("the bank")
    encoder = firth.load(workdir)
    (one,) = encoder.generate("the bank", max_tokens=20, top_k=20)
    assert f"the bank{one.text}\n" == shown[0]
    assert np.isfinite(encoder(["the bank"]).hidden).all()
