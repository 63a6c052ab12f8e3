"""The weighted sum of layers against numpy, and which layers the choices of BERT's paper are."""

import jax
import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.model import create
from firth.models.tagger.bilstm import Config
from firth.models.tagger.mix import CHOICES, ScalarMix, chosen_layers


def test_the_choices_of_table_7_and_of_elmo():
    found = {name: chosen_layers(name, 12, "base") for name in CHOICES}
    assert found == {
        "last": ((12,), False),
        "second_to_last": ((11,), False),
        "embeddings": ((0,), False),
        "sum_last_four": ((9, 10, 11, 12), True),
        "concat_last_four": ((9, 10, 11, 12), False),
        "sum_all": (tuple(range(1, 13)), True),
        "mix": (tuple(range(13)), True),
    }
    assert chosen_layers("7", 12, "base") == ((7,), False)
    assert chosen_layers("sum_last_four", 4, "x").layers == (1, 2, 3, 4)
    for name in ("13", "-1", "sum"):
        with pytest.raises(FirthError, match=r"model\.feature_layers="):
            chosen_layers(name, 12, "base")


def test_the_sum_is_a_scaled_softmax_of_scores():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4, 5)).astype(np.float16)
    mix = ScalarMix()
    fresh = mix.init(jax.random.key(0), x)
    np.testing.assert_allclose(mix.apply(fresh, x), x.astype(float).mean(2), atol=1e-5)
    scores, scale = rng.normal(size=4).astype(np.float32), np.array([1.7], np.float32)
    weights = np.exp(scores.astype(float)) / np.exp(scores.astype(float)).sum()
    found = mix.apply({"params": {"scores": scores, "scale": scale}}, x)
    expected = 1.7 * np.einsum("k,blkf->blf", weights, x.astype(float))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_sum_by_hand():
    """Of s_k: w_k times how far layer k's part is above the mean part; of the scale: that mean."""
    rng = np.random.default_rng(1)
    x, way = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 3, 5))
    scores, scale = rng.normal(size=4), 1.7
    params = {"scores": scores.astype(np.float32), "scale": np.array([scale], np.float32)}

    def along(params):
        return (ScalarMix().apply({"params": params}, x.astype(np.float32)) * way).sum()

    found = jax.grad(along)(params)
    weights = np.exp(scores) / np.exp(scores).sum()
    parts = np.einsum("blkf,blf->k", x, way)
    mean = weights @ parts
    np.testing.assert_allclose(found["scores"], scale * weights * (parts - mean), rtol=1e-4)
    np.testing.assert_allclose(found["scale"], [mean], rtol=1e-4)


def test_a_tagger_reads_the_sum():
    """Its input is that of a tagger which is given the sum itself."""
    sizes = dict(family="tagger", embedding_size=0, filters=0, feature_size=5, hidden_size=3)
    mixed = create(sizes | {"feature_mix": 4}, ("tags",), num_labels=2)
    plain = create(sizes, ("tags",), num_labels=2)
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    tokens = np.zeros((2, 3), np.int32)
    params = mixed.init(jax.random.key(0), tokens)["params"]
    assert params["encoder"]["mix"]["scores"].shape == (4,)
    params["encoder"]["mix"]["scores"] = np.array([1, 2, 3, 4], np.float32)
    weights = np.exp([1, 2, 3, 4]) / np.exp([1, 2, 3, 4]).sum()
    total = np.einsum("k,blkf->blf", weights, x).astype(np.float32)
    others = params | {"encoder": {"stack": params["encoder"]["stack"]}}

    def last(model, params, features):
        return model.bind({"params": params}).encoder(tokens, features=features).last

    found, expected = last(mixed, params, x), last(plain, others, total)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_config_that_cannot_be():
    with pytest.raises(FirthError, match="feature_context='text': expected sentence or document"):
        Config(feature_context="text")
    with pytest.raises(FirthError, match="feature_mix=-1 should be at least 0"):
        Config(feature_mix=-1)
    with pytest.raises(FirthError, match="feature_layers='x'"):
        Config(feature_layers="x")
