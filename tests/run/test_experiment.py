"""What a config becomes: which documents are read, how long a run is, what it starts from."""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers.runs import make_corpus

from firth import recipe
from firth.cli import main
from firth.data.corpus.store import open_store
from firth.errors import FirthError
from firth.run import experiment
from firth.training.partition import create_mesh

PRETRAINING = {
    "pairs": "bert.py:tiny,length=32",
    "packed": "roberta.py:tiny,length=32",
    "streams": "gpt2.py:tiny,length=32",
}


@pytest.fixture
def seen(monkeypatch):
    """[(store's digest, documents, seed)] of every view that is made."""
    made, create_view = [], experiment.create_view

    def spy(data, source):
        made.append((source.store.digest, source.documents, source.seed))
        return create_view(data, source)

    monkeypatch.setattr(experiment, "create_view", spy)
    return made


def built(name, **fields):
    fields = {"batch_size": 8, "eval.batch_size": 4, "eval.batches": 3} | fields
    config = recipe.with_fields(recipe.read_recipe(name), fields)
    return experiment.build(config, create_mesh(config.mesh))


@pytest.mark.parametrize("view", PRETRAINING)
def test_no_document_is_both_learned_and_held_out(view, store, seen):
    """Of all documents each is one or the other; a seed of its own chooses rows of both."""
    run = built(PRETRAINING[view], **{"data.store": str(store), "data.heldout": 0.25, "seed": 3})
    (_, held, _), (_, learned, seed) = seen
    everything = np.arange(len(open_store(store).documents) - 1)
    np.testing.assert_array_equal(np.sort(np.concatenate([held, learned])), everything)
    assert 0 < len(held) < len(learned) and seed == 3
    assert run.heldout.keys() == {"heldout"} and run.batch(0)["tokens"].shape == (8, 32)


def test_another_store_is_held_out_as_a_whole(store, seen, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    fields = {"data.store": str(store), "data.heldout": 0.25}
    with pytest.raises(FirthError, match="was made with another tokenizer"):
        trained = ["--train-tokenizer=wordpiece", "--vocab-size=50"]
        small = prepare(make_corpus(other / "corpus.txt"), other / "tok", other, *trained)
        built(PRETRAINING["packed"], **fields, **{"data.heldout_store": str(small)})
    seen.clear()
    same = prepare(make_corpus(tmp_path / "more.txt", seed=1), store.parent / "tok", tmp_path)
    run = built(PRETRAINING["packed"], **fields, **{"data.heldout_store": str(same)})
    digests = [open_store(folder).digest for folder in (same, store)]
    assert [(digest, documents) for digest, documents, _ in seen] == [(d, None) for d in digests]
    assert [one.digest for one in run.stores] == digests[::-1]


def prepare(corpus, tokenizer, folder, *more):
    """A store of a corpus by the command."""
    command = f"prepare --input {corpus} --tokenizer {tokenizer} --sentences line "
    assert main([*f"{command} --output {folder}/store".split(), *more]) == 0
    return folder / "store"


@pytest.mark.parametrize(("view", "fewest"), [("pairs", 2), ("packed", 1)])
def test_as_many_documents_are_held_out_as_the_view_needs(view, fewest, store, seen):
    """A random second text is another document's."""
    built(PRETRAINING[view], **{"data.store": str(store), "data.heldout": 1e-9})
    assert len(seen[0][1]) == fewest


def test_nothing_is_held_out_where_nothing_should_be(store, seen):
    run = built(PRETRAINING["packed"], **{"data.store": str(store), "data.heldout": 0.0})
    assert run.heldout == {} and [documents for _, documents, _ in seen] == [None]


def test_so_many_batches_are_measured_and_other_ones_learned(store):
    fields = {"data.store": str(store), "data.heldout": 0.4, "eval.every": 7}
    run = built(PRETRAINING["packed"], **fields, steps=40)
    batches = list(run.heldout["heldout"]())
    assert [batch["tokens"].shape for batch in batches] == [(4, 32)] * 3
    assert (run.steps, run.evaluate_every, run.best) == (40, 7, "")
    first, second = run.batch(0)["tokens"], run.batch(1)["tokens"]
    assert (first != second).any() and (first == run.batch(0)["tokens"]).all()


# ---------------------------------------------------------------------------- fine-tuning


@pytest.fixture
def finetuned(store, tmp_path):
    """`finetuned(fields)`: the run on 40 examples, 5 batches of 8, of a body from nothing."""
    words = ("good", "bad")
    for split, rows in (("train", 40), ("dev", 11)):
        lines = [f"the film was {words[i % 2]},{words[i % 2]}" for i in range(rows)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")

    def build(**fields):
        config = recipe.read_recipe("finetune.py:task=custom,length=16")
        body = recipe.read_recipe("bert.py:tiny,length=32").model.to_dict()
        with config.unlocked():
            config.model = body
        fields = {"batch_size": 8, "data.tokenizer": str(store.parent / "tok")} | fields
        fields |= {f"data.{split}": str(tmp_path / f"{split}.csv") for split in ("train", "dev")}
        fields |= {"data.text": "text", "data.label": "label"}
        config = recipe.with_fields(config, fields)
        return experiment.build(config, create_mesh(config.mesh))

    return build


@pytest.mark.parametrize(
    ("fields", "steps", "every"),
    [
        ({}, 15, 5),
        ({"epochs": 1.5, "eval.epochs": 0.5}, 8, 2),
        ({"epochs": 0.01, "eval.epochs": 0.01}, 1, 1),
        ({"steps": 7, "eval.every": 3}, 7, 3),
    ],
)
def test_the_length_of_a_run_is_in_epochs_unless_steps_are_given(finetuned, fields, steps, every):
    run = finetuned(**fields)
    assert (run.steps, run.evaluate_every) == (steps, every)


def test_a_task_is_measured_on_what_it_is_not_trained_on(finetuned):
    run = finetuned(**{"eval.batch_size": 4})
    assert run.heldout.keys() == {"dev"} and run.best == "dev/accuracy"
    rows = list(run.heldout["dev"]())
    assert sum(int((batch["weight"] > 0).sum()) for batch in rows) == 11
    assert run.model.num_labels == 2 and run.spec["pooler"]
    assert finetuned(**{"checkpoint.best": "dev/loss"}).best == "dev/loss"
    assert finetuned(**{"checkpoint.best": ""}).best == ""


# ------------------------------------------------------------------------ what it starts from


def test_the_config_is_above_the_weights_and_these_above_what_the_objective_brings():
    tokenizer = SimpleNamespace(vocab_size=50, pad_id=7)
    saved = SimpleNamespace(
        spec=dict(family="bert", hidden_size=24, dropout=0.3, max_length=64, vocab_size=60),
        params={"encoder": "its own"},
    )
    config = recipe.read_recipe("finetune.py:task=rte,init=somewhere,length=64")
    spec = experiment.model_spec(config, saved, tokenizer)
    assert (spec["hidden_size"], spec["dropout"], spec["vocab_size"]) == (24, 0.1, 60)
    assert "from_init" not in spec
    brings = SimpleNamespace(initial=lambda spec: {"encoder": "the teacher's", "teacher": "all"})
    found = experiment._initial(saved, brings, spec)
    assert found == {"encoder": "its own", "teacher": "all"}
    assert experiment._initial(None, brings, spec)["encoder"] == "the teacher's"
    assert (
        experiment._initial(saved, SimpleNamespace(initial=lambda spec: {}), spec) == saved.params
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data.length": 65}, r"data\.length=65 is beyond the position table .*=64"),
        ({"model.vocab_size": 49}, "has 50 tokens but model.vocab_size is 49"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_and_what_just_fits_is_not(fields, message):
    tokenizer = SimpleNamespace(vocab_size=50, pad_id=7)
    changes = {"model.max_length": 64, "data.length": 64, "model.vocab_size": 50}
    config = recipe.with_fields(recipe.read_recipe("roberta.py:tiny,length=64"), changes)
    spec = experiment.model_spec(config, None, tokenizer)
    assert spec["vocab_size"] == 50
    with pytest.raises(FirthError, match=message):
        experiment.model_spec(recipe.with_fields(config, fields), None, tokenizer)


def test_the_tokenizer_fills_in_what_the_config_leaves_open():
    tokenizer = SimpleNamespace(vocab_size=50, pad_id=7)
    config = recipe.read_recipe("bert.py:tiny,length=64")
    with config.unlocked():
        config.model.vocab_size, config.model.pad_id = 0, -1
    spec = experiment.model_spec(config, None, tokenizer)
    assert (spec["vocab_size"], spec["pad_id"]) == (50, 7)
    with pytest.raises(FirthError, match="init_from is not set"):
        experiment.model_spec(recipe.read_recipe("finetune.py:task=rte"), None, tokenizer)
