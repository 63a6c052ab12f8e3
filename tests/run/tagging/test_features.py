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
def deep(store, tmp_path_factory):
    """The same with five layers."""
    workdir = tmp_path_factory.mktemp("deep") / "run"
    make_run(workdir, store, **{"model.num_layers": 5})
    return workdir


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("tagged") / "a.bio"
    path.write_text("the X\ncats Y\nwalked X\n\nanother X\none X\n\nred Y\n")
    return path


def vectors_by_hand(encoder, sentences, layer):
    """Each sentence by itself: the hidden states of a layer at the first pieces of its words."""
    whole, found = firth.load(encoder, heads=False), []
    for words in sentences.split(sentences.words):
        out = whole([" ".join(words)])
        (encoding,) = whole.tokenizer.encode([" ".join(words)])
        places = [encoding.words.tolist().index(word) + 1 for word in range(len(words))]  # [CLS]
        found.append(np.asarray(out.hidden[layer])[0, places])
    return np.concatenate(found)


@pytest.mark.parametrize(("layers", "number"), [("last", -1), ("1", 1), ("embeddings", 0)])
def test_vectors_are_those_of_first_pieces(encoder, path, layers, number, tmp_path):
    sentences = read_sentences(path)
    features = Features(str(encoder), layers)
    found = features.kept(tmp_path, sentences)[np.arange(6)]
    assert found.shape == (6, features.size) and found.dtype == np.float16
    np.testing.assert_allclose(found, vectors_by_hand(encoder, sentences, number), atol=2e-3)
    np.testing.assert_array_equal(features(sentences)[np.arange(6)], found)
    (kept,) = tmp_path.glob("*.npy")
    np.save(kept, np.zeros_like(found))
    assert not features.kept(tmp_path, sentences)[np.arange(6)].any(), "computed again"
    other = read_sentences(path, tag="0", word="1")
    assert features.kept(tmp_path, other)[np.arange(6)].any()
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_choices_share_what_is_kept_of_each_layer(deep, path, tmp_path, monkeypatch):
    sentences, rows = read_sentences(path), np.arange(6)
    by_hand = [vectors_by_hand(deep, sentences, layer) for layer in range(6)]
    joined = Features(str(deep), "concat_last_four")
    found = joined.kept(tmp_path, sentences)
    assert (joined.size, joined.mix, found.shape) == (64, 0, (6, 64))
    np.testing.assert_allclose(found[rows], np.concatenate(by_hand[2:], 1), atol=2e-3)
    assert len(list(tmp_path.glob("*.npy"))) == 4
    all_layers = Features(str(deep), "sum_all")
    found = all_layers.kept(tmp_path, sentences)
    assert (all_layers.size, all_layers.mix, found.shape) == (16, 5, (6, 5, 16))
    np.testing.assert_allclose(found[rows], np.stack(by_hand[1:], 1), atol=2e-3)
    assert len(list(tmp_path.glob("*.npy"))) == 5  # layer 1 alone was made
    monkeypatch.setattr(Features, "_compute", None)
    for name, layer in (("second_to_last", 4), ("5", 5), ("last", 5)):
        found = Features(str(deep), name).kept(tmp_path, sentences)
        np.testing.assert_allclose(found[rows], by_hand[layer], atol=2e-3)
    four = Features(str(deep), "sum_last_four")
    assert four.mix == 4 and four.kept(tmp_path, sentences)[rows[:2]].shape == (2, 4, 16)


def test_vectors_with_document_context_are_those_of_the_whole_document(encoder, tmp_path):
    """One row holds each document; sentences then see each other, and no other document."""
    text = "the X\ncats Y\n\nanother X\none X\n"
    (tmp_path / "one").write_text(text)
    (tmp_path / "joined").write_text(text.replace("\n\n", "\n"))
    (tmp_path / "two").write_text(f"-DOCSTART- X\n\n{text}\n-DOCSTART- X\n\nred Y\n")
    one, joined, two = (read_sentences(tmp_path / n) for n in ("one", "joined", "two"))
    features, rows = Features(str(encoder), context="document"), np.arange(4)
    alone = Features(str(encoder))
    found = features(one)[rows]
    np.testing.assert_allclose(found, alone(joined)[rows], atol=2e-3)
    assert np.abs(found - alone(one)[rows]).max() > 0.01
    np.testing.assert_allclose(features(two)[rows], found, atol=2e-3)
    np.testing.assert_allclose(features(two)[rows[:1] + 4], alone(two)[rows[:1] + 4], atol=2e-3)
    kept = features.kept(tmp_path / "kept", one), alone.kept(tmp_path / "kept", one)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    np.testing.assert_array_equal(kept[0][rows], found)


def test_features_that_cannot_be(encoder):
    for layers, pattern in (
        ("2", r"feature_layers=2: .* has 1 layers; expected 1 to 1, or 0"),
        ("sum_last_four", r"feature_layers=sum_last_four: .* has 1 layers; expected four or more"),
        ("lats", r"feature_layers='lats': expected last, .*, or the number of a layer"),
    ):
        with pytest.raises(FirthError, match=pattern):
            Features(str(encoder), layers)


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


def test_runs_share_a_folder_of_features_and_learn_the_weights_of_layers(deep, path, one_device):
    import jax

    only = {"model.embedding_size": 0, "model.filters": 0}
    folder = path.parent / "shared"
    only["data.feature_folder"] = str(folder)
    run = built(f"tagger.py:tiny,features={deep},layers=sum_all,context=document", path, **only)
    batch = run.batch(0)
    assert batch["features"].shape[-2:] == (5, 16) and len(list(folder.glob("*.npy"))) == 5
    assert (run.spec["feature_size"], run.spec["feature_mix"]) == (16, 5)
    init = jax.eval_shape(run.model.init, jax.random.key(0), np.zeros((1, 8), np.int32))
    assert init["params"]["encoder"]["mix"]["scores"].shape == (5,)
    assert init["params"]["encoder"]["stack"]["forward_0"]["input"].shape[0] == 16


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
