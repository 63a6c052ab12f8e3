"""The character CNN and its highway layers against torch's convolutions, in both papers' forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.layers.characters.cnn import CharacterCNN, check_filters, places_needed

M, W, C = 5, 11, 20
ELMO = dict(
    characters=C, width=4, filters=((1, 3), (2, 4), (5, 6)), activation="relu", highways=2,
    projection=7,
)  # fmt: skip
KIM = ELMO | dict(filters=((1, 2), (3, 5)), activation="tanh", highways=1, projection=0)


def words(seed=0):
    """Words of one to W characters, the rest id 1; the last one is no word at all."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(2, C, (M, W))
    ids[np.arange(W) >= np.array([1, 3, 6, W, 0])[:, None]] = 1
    ids[-1] = 0
    return ids


def torch_cnn(torch, options, params, ids):
    """The same with torch's modules: conv1d, maximum, activation, highways, projection."""
    p = {name: torch.tensor(np.array(value)) for name, value in params.items() if "filters" in name}
    table = torch.tensor(np.array(params["embedding"]))
    table[0] = 0
    x = torch.nn.functional.embedding(torch.tensor(ids), table).transpose(1, 2)
    act = getattr(torch, options["activation"])
    found = []
    for i in range(len(options["filters"])):
        kernel = p[f"filters_{i}_kernel"].permute(2, 1, 0)
        y = torch.nn.functional.conv1d(x, kernel, p[f"filters_{i}_bias"])
        found.append(act(y).max(-1).values)
    x = torch.cat(found, -1)

    def affine(name, x):
        kernel, bias = (torch.tensor(np.array(params[name][k])) for k in ("kernel", "bias"))
        return x @ kernel + bias

    for i in range(options["highways"]):
        gate = torch.sigmoid(affine(f"highway_{i}_carry", x))
        x = gate * torch.relu(affine(f"highway_{i}_transform", x)) + (1 - gate) * x
    return (affine("projection", x) if options["projection"] else x).numpy()


@pytest.mark.parametrize("options", [ELMO, KIM], ids=["elmo", "kim"])
def test_vectors_are_those_of_torch(options):
    torch = pytest.importorskip("torch")
    model, ids = CharacterCNN(**options), words()
    params = initial(model, jnp.asarray(ids), seed=1, scale=0.5)
    own = jit(model.apply)({"params": params}, ids)
    np.testing.assert_allclose(own, torch_cnn(torch, options, params, ids), rtol=1e-5, atol=5e-6)


def test_places_behind_the_longest_word_change_nothing():
    model, ids = CharacterCNN(**ELMO), words()[:3]
    params = initial(model, jnp.asarray(ids), seed=1, scale=0.5)
    most = places_needed(4, ELMO["filters"], W)
    assert most == 9
    whole = jit(model.apply)({"params": params}, ids[:2])
    fewer = jit(model.apply)({"params": params}, ids[:2, :most])
    np.testing.assert_allclose(fewer, whole, rtol=1e-5, atol=1e-6)
    # Filters that fit no padding alone see less.
    assert np.abs(model.apply({"params": params}, ids[:2, :5]) - whole).max() > 1e-3
    assert places_needed(9, ELMO["filters"], W) == W


def test_any_outer_shape():
    model, ids = CharacterCNN(**ELMO), words()
    params = initial(model, jnp.asarray(ids), seed=1, scale=0.5)
    flat = jit(model.apply)({"params": params}, ids)
    own = jit(model.apply)({"params": params}, np.stack([ids, ids[::-1]]))
    assert own.shape == (2, M, 7)
    np.testing.assert_allclose(own[1], flat[::-1], rtol=1e-6, atol=1e-7)


def test_the_row_of_no_character_is_zero_and_not_trained():
    model, ids = CharacterCNN(**ELMO), jnp.asarray(words())
    params = initial(model, ids, seed=1, scale=0.5)
    assert np.abs(params["embedding"][0]).min() > 0  # even if a file has something there

    def loss(params):
        return jnp.square(model.apply({"params": params}, ids)).sum()

    gradient = jit(jax.grad(loss))(params)["embedding"]
    assert not gradient[0].any()
    assert np.abs(gradient[1]).min() > 0
    assert not model.init(jax.random.key(0), ids)["params"]["embedding"][0].any()


@pytest.mark.parametrize("activation, spread", [("relu", 0.05 / np.sqrt(3)), ("tanh", 0.0884)])
def test_initial_values_are_those_of_the_released_code(activation, spread):
    wide = dict(characters=262, width=16, filters=((2, 8), (8, 800)), activation=activation)
    params = CharacterCNN(**wide, projection=64).init(jax.random.key(0), jnp.ones((1, 9), int))
    params = params["params"]
    assert np.abs(params["embedding"]).max() <= 1
    assert np.std(params["embedding"]) == pytest.approx(1 / np.sqrt(3), rel=0.05)
    assert np.std(params["filters_1_kernel"]) == pytest.approx(spread, rel=0.02)
    assert not params["filters_1_bias"].any()
    for name in ("highway_0_carry", "highway_0_transform", "projection"):
        assert np.std(params[name]["kernel"]) == pytest.approx(808**-0.5, rel=0.02)
        assert np.all(params[name]["bias"] == (-2 if "carry" in name else 0))


def test_one_range_for_all_initial_values():
    model = CharacterCNN(**KIM, init_range=0.05)
    params = model.init(jax.random.key(0), jnp.asarray(words()))["params"]
    params["highway_0_carry"]["bias"] += 2
    for leaf in jax.tree.leaves(params):
        assert 0.02 < np.abs(leaf).max() <= 0.05 + 1e-6


def test_errors_name_what_is_wrong():
    with pytest.raises(FirthError, match="words of 4 characters are too short for filters over 5"):
        CharacterCNN(**ELMO).init(jax.random.key(0), jnp.ones((1, 4), int))
    with pytest.raises(FirthError, match=r"model.filters has \[0, 4\]: expected \[width, number\]"):
        check_filters([[1, 2], [0, 4]])
    with pytest.raises(FirthError, match=r"options.json: filters has \[1\]"):
        check_filters([[1]], "options.json: filters")
    with pytest.raises(FirthError, match="at least one pair"):
        check_filters(())
