"""Frozen vectors of words: those of the encoder itself at first pieces, kept on disk."""

import numpy as np
import pytest
from helpers.lines import make_run

import firth
from firth import recipe
from firth.data.tagging.files import read_sentences
from firth.errors import FirthError
from firth.run import experiment
from firth.run.tagging.features import Features
from firth.training.partition import create_mesh


@pytest.fixture(scope="module")
def encoder(store, tmp_path_factory):
    """The workdir of a small BERT with random parameters."""
    workdir = tmp_path_factory.mktemp("encoder") / "run"
    make_run(workdir, store)
    return workdir


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tagged") / "a.bio"
    path.write_text("the X\ncats Y\nwalked X\n\nanother X\none X\n\nred Y\n")
    return path


@pytest.mark.parametrize("layer", [0, 1])
def test_vectors_are_those_of_first_pieces(encoder, path, layer, tmp_path):
    sentences = read_sentences(path)
    features = Features(str(encoder), layer)
    found = features.kept(tmp_path, sentences)
    whole, number = firth.load(encoder, heads=False), 0
    assert found.shape == (6, features.size) and found.dtype == np.float16
    for words in sentences.split(sentences.words):
        out = whole([" ".join(words)])
        (encoding,) = whole.tokenizer.encode([" ".join(words)])
        for word in range(len(words)):
            place = encoding.words.tolist().index(word) + 1  # after [CLS]
            np.testing.assert_allclose(found[number], out.hidden[-1][0, place], atol=2e-3)
            number += 1
    (kept,) = tmp_path.glob("*.npy")
    np.save(kept, np.zeros_like(found))
    assert not features.kept(tmp_path, sentences).any(), "computed again"
    other = read_sentences(path, tag="0", word="1")
    assert features.kept(tmp_path, other).any() and len(list(tmp_path.glob("*.npy"))) == 2


def test_features_that_cannot_be(encoder):
    with pytest.raises(FirthError, match=r"feature_layer=2: .* has 1 layers; expected 1 to 1"):
        Features(str(encoder), 2)


def built(name, path, **changes):
    fields = {"data.train": str(path), "data.dev": str(path), "mesh.data": 1, "batch_size": 2}
    fields |= {"eval.batch_size": 2, "data.length": 16} | changes
    config = recipe.with_fields(recipe.read_recipe(name), fields)
    return experiment.build(config, create_mesh(config.mesh), path.parent / "epochs.json")


@pytest.fixture
def one_device(monkeypatch):
    import jax

    devices = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: devices)


def test_a_tagger_reads_features_alone(encoder, path, one_device):
    only = {"model.embedding_size": 0, "model.filters": 0}
    run = built(f"tagger.py:tiny,features={encoder}", path, **only)
    batch = run.batch(0)
    assert run.spec["feature_size"] == batch["features"].shape[-1] == 16
    assert "characters" not in batch
    assert list((path.parent / "features").glob("*.npy"))


def test_an_encoder_is_fine_tuned_by_first_pieces(encoder, path, one_device):
    import jax

    run = built(f"tagger.py:init={encoder},crf=true", path)
    batch = run.batch(0)
    assert "first" in batch and "characters" not in batch and run.spec["family"] == "bert"
    from firth.models.model import bound

    def losses(model, batch):
        return run.objective.losses(model, batch, train=False)

    params = jax.eval_shape(run.model.init, jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    sums, _ = jax.eval_shape(bound(run.model, losses), params, batch)
    assert sums["tag"].shape == ()
