"""The recipe that goes on from published weights: objective, steps, tokenizer, a run."""

import json

import numpy as np
import pytest
from helpers.published.bert import make_bert
from helpers.published.families import make_model
from helpers.runs import make_corpus

from firth import recipe
from firth.cli import main
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.run import experiment
from firth.run.outline import outline
from firth.tokenizers.load import load_tokenizer
from firth.training.partition import create_mesh
from firth.weights.read import read_family, read_model

SMALL = ["--config.batch_size=8", "--config.eval.batch_size=8", "--config.eval.batches=1"]
SMALL += ["--config.data.heldout=0.2", "--config.data.loader=thread", "--config.progress=False"]


def with_tokenizer(folder, store):
    """Weights become a pair with the tokenizer of the test's corpus."""
    load_tokenizer(store.parent / "tok").save(folder)
    return folder


@pytest.fixture(scope="module")
def weights(store, tmp_path_factory):
    """A BERT with no masked-LM head, as wide a vocabulary as the corpus has, and its tokenizer."""
    folder = tmp_path_factory.mktemp("weights") / "bert"
    make_bert(folder, vocab_size=load_tokenizer(store.parent / "tok").vocab_size)
    return with_tokenizer(folder, store)


def build(name, store, *overrides):
    config = recipe.read_recipe(name, [*SMALL, f"--config.data.store={store}", *overrides])
    return experiment.build(config, create_mesh(config.mesh))


@pytest.mark.parametrize(
    ("family", "objective", "view"),
    [
        ("roberta", "mlm", "packed"),
        ("electra", "mlm", "packed"),
        ("gpt2", "clm", "streams"),
        ("transformer_xl", "clm", "streams"),
        ("xlnet", "plm", "packed"),
    ],
)
def test_the_family_decides_the_objective(family, objective, view):
    config = recipe.read_recipe(f"adapt.py:family={family},length=32")
    assert (config.objective.name, config.data.view) == (objective, view)
    assert config.objective.get("memory", 0) == (32 if family == "transformer_xl" else 0)


def test_the_family_is_read_from_the_weights(tmp_path, weights):
    make_model(tmp_path / "gpt2", "gpt2", "tanh")
    assert main(["convert", "--from", str(tmp_path / "gpt2"), "--to", str(tmp_path / "own")]) == 0
    for folder in ("gpt2", "own"):
        assert read_family(tmp_path / folder) == "gpt2"
        assert recipe.read_recipe(f"adapt.py:init={tmp_path / folder}").objective.name == "clm"
    assert recipe.read_recipe(f"adapt.py:init={weights}").objective.name == "mlm"
    with pytest.raises(FirthError, match="gone does not exist; expected a directory with a model"):
        recipe.read_recipe("adapt.py:init=gone")


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_epochs_are_passes_over_what_is_learned(name, store, weights, tmp_path):
    """Of single rows, and of streams."""
    if name == "gpt2":
        weights = with_tokenizer(tmp_path, store)
        make_model(weights, "gpt2", "tanh", vocab_size=load_tokenizer(weights).vocab_size)
    run = build(f"adapt.py:init={weights},length=16", store, "--config.epochs=2.0")
    per_epoch = run.steps / 2
    seen = {}
    for step in range(run.steps):
        batch = run.batch(step)
        for pair in zip(batch["copy"].tolist(), batch["example"].tolist(), strict=True):
            seen[pair] = seen.get(pair, 0) + 1
    copies = [copy for copy, _ in seen]
    assert set(seen.values()) == {1} and copies.count(0) == pytest.approx(8 * per_epoch, abs=8)
    assert copies.count(1) == pytest.approx(copies.count(0), abs=8)
    assert build(f"adapt.py:init={weights},length=16", store, "--config.steps=7").steps == 7


def test_a_store_of_another_tokenizer_is_refused(store, weights, tmp_path):
    """Even one with as many tokens: its ids mean other words."""
    corpus = make_corpus(tmp_path / "corpus.txt", seed=5)
    made = f"prepare --input {corpus} --tokenizer {tmp_path}/tok --train-tokenizer wordpiece "
    assert main(f"{made} --vocab-size 100 --output {tmp_path}/other".split()) == 0
    with pytest.raises(FirthError, match=rf"another tokenizer than .* prepare it .*{weights}"):
        build(f"adapt.py:init={weights},length=16", tmp_path / "other")


def test_prepare_takes_the_tokenizer_of_weights(store, weights, tmp_path, monkeypatch):
    """Of a directory, of a name that stands for one, of a workdir."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("firth.weights.read.find_packaged", lambda name: weights)
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    with_tokenizer(run / "tokenizer", store)
    expected = open_store(store).tokenizer().digest
    for number, name in enumerate((weights, "minilm", run)):
        line = f"prepare --input {store.parent}/corpus.txt --tokenizer {name} --output {number}"
        assert main(line.split()) == 0
        assert open_store(tmp_path / str(number)).tokenizer().digest == expected


@pytest.mark.slow
def test_a_run_goes_on_from_the_weights(store, weights, tmp_path, caplog):
    """Their body is what it starts from; the head that they lack is said to be new."""
    line = f"train --config=adapt.py:init={weights},length=16 --workdir={tmp_path / 'run'} "
    line += f"--config.data.store={store} --config.steps=2 --config.schedule.lr=0.0"
    caplog.set_level("INFO")
    assert main([*line.split(), *SMALL]) == 0
    assert f"not in {weights}, so random: mlm/bias, mlm/dense/bias" in caplog.text
    before, after = read_model(weights), read_model(tmp_path / "run")
    assert before.heads == () and after.heads == ("mlm",)
    assert after.spec == before.spec
    for name in ("word", "position"):
        old, new = (m.params["encoder"][name]["embedding"] for m in (before, after))
        np.testing.assert_array_equal(old, new)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 2


def test_a_plan_needs_its_steps(weights):
    with pytest.raises(FirthError, match=r"epochs=3: their steps depend .*--config.steps=N"):
        outline(recipe.read_recipe(f"adapt.py:init={weights},length=32"))
    planned = outline(
        recipe.read_recipe(f"adapt.py:init={weights},length=32", ["--config.steps=9"])
    )
    assert planned.steps == 9 and planned.spec["family"] == "bert"
    with pytest.raises(FirthError, match="init_from is not set"):
        outline(recipe.read_recipe("adapt.py", ["--config.steps=9"]))
