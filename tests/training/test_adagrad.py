"""Adagrad as TensorFlow 1 has it, against torch's without its epsilon."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from firth.errors import FirthError
from firth.training import optim


@pytest.mark.parametrize("initial", [1.0, 0.0025])
def test_adagrad_is_torchs_without_epsilon(initial):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start = rng.normal(size=(4, 3)).astype(np.float32)
    spec = ConfigDict(
        dict(name="adagrad", initial_accumulator=initial, weight_decay=0.0, decay_exclude=(),
             clip_norm=0.0, multipliers=(), freeze=())
    )  # fmt: skip
    own, theirs = {"w": jnp.asarray(start)}, torch.nn.Parameter(torch.tensor(start))
    optimizer = optim.create_optimizer(spec)
    state = optimizer.init(own)
    other = torch.optim.Adagrad([theirs], 0.2, initial_accumulator_value=initial, eps=0.0)
    for _ in range(6):
        grad = rng.normal(size=start.shape).astype(np.float32)
        skipped = optimizer.update({"w": jnp.asarray(grad)}, state, own, counts=False)[1]
        assert jax.tree.all(jax.tree.map(np.array_equal, skipped, state))
        updates, state = optimizer.update({"w": jnp.asarray(grad)}, state, own)
        own = optax.apply_updates(own, jax.tree.map(lambda u: -0.2 * u, updates))
        theirs.grad = torch.tensor(grad)
        other.step()
    np.testing.assert_allclose(own["w"], theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_adagrad_moves_nothing_without_gradient_and_needs_its_field():
    scale = optim.scale_by_adagrad(0.0)
    updates, _ = scale.update({"w": jnp.zeros(3)}, scale.init({"w": jnp.ones(3)}))
    assert not np.asarray(updates["w"]).any()
    spec = ConfigDict(dict(name="adagrad", weight_decay=0.0, decay_exclude=(), clip_norm=0.0))
    with pytest.raises(FirthError, match=r"needs optimizer.initial_accumulator, which this recipe"):
        optim.create_optimizer(spec)
