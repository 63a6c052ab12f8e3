"""Steps that go wrong: a loss or gradient that is not finite, or a loss far above those before it.

The step finds out on the device, and changes nothing but its count and the window of losses; what
a model remembers it forgets, since the next batch goes on after the one that was left out. What
follows is up to the recipe, by `nonfinite` and `spike.policy`:

    stop      the run ends; what is saved holds the parameters before the step
    skip      the step stays left out and is counted
    rollback  the run goes back by `rollback.batches` steps and takes the batches that follow this
              one instead of those that led to it (Chowdhery et al. 2022, section 5.1, do so by
              hand, with 200 to 500 batches); after `rollback.limit` times it stops

A rollback is a restart that leaves batches out. It starts from any checkpoint at or before the step
that it goes back to, and takes the batches of old up to that step: so the outcome hangs neither on
when checkpoints were written nor on where a run was killed. Which batches were left out is saved
with every checkpoint.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError

POLICIES = ("stop", "skip", "rollback")


@dataclasses.dataclass(frozen=True)
class Policy:
    """What a recipe says of such steps; `deviations` is 0 where no spikes are looked for."""

    nonfinite: str
    spike: str
    deviations: float
    window: int
    batches: int
    limit: int

    @property
    def rollback_steps(self) -> int:
        """How many steps a rollback may go back; 0 where there is none."""
        rolls = self.nonfinite == "rollback" or (self.deviations and self.spike == "rollback")
        return self.batches if rolls else 0


def read_policy(config) -> Policy:
    """The policy of a recipe.

    Raises FirthError for an unknown policy or a number out of range.
    """
    spike = config.spike
    policy = Policy(
        nonfinite=config.nonfinite,
        spike=spike.policy,
        deviations=spike.deviations,
        window=spike.window if spike.deviations else 0,
        **config.rollback,
    )
    for field, name in (("nonfinite", policy.nonfinite), ("spike.policy", policy.spike)):
        if name not in POLICIES:
            raise FirthError(f"{field}={name!r} is unknown; choose one of {', '.join(POLICIES)}")
    for field, value, least in (
        ("spike.deviations", policy.deviations, 0),
        ("spike.window", policy.window, 2 if policy.deviations else 0),
        ("rollback.batches", policy.batches, 1),
        ("rollback.limit", policy.limit, 0),
    ):
        if value < least:
            raise FirthError(f"{field}={value} should be at least {least}")
    return policy


# ---------------------------------------------------------------------------------- the device


def check_loss(losses, loss, squares, deviations: float):
    """Whether a step counts, and the window of losses after it.

    Args:
      losses: float32 [W], those of the steps before, newest last, NaN where there were not so
        many; or None where no spikes are looked for.
      loss: float32 [], of this step.
      squares: float32 [parameters], squared gradient norms.
      deviations: a spike lies so many standard deviations above the mean of the window.

    Returns:
      finite: bool [].
      spike: bool []; never before the window is full.
      losses: the window; a spike enters as if it had been just below one, so that a loss that has
        risen for good is soon none, and what is not finite does not enter.
    """
    finite = jnp.isfinite(loss) & jnp.isfinite(squares.sum())
    if losses is None:
        return finite, jnp.zeros((), bool), None
    bound = losses.mean() + deviations * losses.std()
    spike = finite & (loss > bound)  # nothing is greater than NaN
    entered = jnp.roll(losses, -1).at[-1].set(jnp.where(spike, bound, loss))
    return finite, spike, jnp.where(finite, entered, losses)


# ------------------------------------------------------------------------------------ the host


class Rollback(Exception):  # noqa: N818 - no error: the loop starts anew
    """Go back and leave batches out; `rollbacks` is the list that the run goes on with."""

    def __init__(self, rollbacks: list[dict]):
        super().__init__(rollbacks[-1]["why"])
        self.rollbacks = rollbacks


def batch_of(step: int, rollbacks: list[dict]) -> int:
    """The number of the batch that the step after `step` others takes.

    `rollbacks` holds {step, batch, why} of each rollback, oldest first: from that step on, batches
    count on from that one. The newest that applies decides.
    """
    return next(
        (b["batch"] + step - b["step"] for b in reversed(rollbacks) if step >= b["step"]), step
    )


def skip_batches(batch, rollbacks: list[dict]):
    """`batch(step)` of a view without the batches that rollbacks leave out: a function of the step.

    Where the number of the batch jumps, a model with a memory remembers another text than the rows
    go on with; `reset` is then set for all of them.
    """

    def numbered(step: int) -> dict[str, np.ndarray]:
        number = batch_of(step, rollbacks)
        rows = batch(number)
        jumps = step > 0 and number != batch_of(step - 1, rollbacks) + 1
        if jumps and "reset" in rows:
            rows = rows | {"reset": np.ones_like(rows["reset"])}
        return rows

    return numbered


class Guard:
    """Follows the policy on the host, step by step; `names` are those of the parameters."""

    def __init__(self, policy: Policy, names: list[str], rollbacks: list[dict], journal, bar):
        self.policy, self.names, self.rollbacks = policy, names, rollbacks
        self.journal, self.bar = journal, bar

    def check(self, step: int, measured: dict, squares: np.ndarray) -> dict:
        """The metrics of a finished step as far as they count; `step` is its number, from 1.

        Raises FirthError where the policy is to stop, Rollback where it is to go back.
        """
        for back in self.rollbacks:
            if back["step"] == step - 1:
                self.journal.write(step, {"train/rollback": back["why"]})
        loss = float(measured["loss"][0])
        bad = [n for n, value in zip(self.names, squares, strict=True) if not np.isfinite(value)]
        if bad or not np.isfinite(loss) or not np.isfinite(squares.sum()):
            whole = "the loss" if not np.isfinite(loss) else "the norm of the gradient"
            where = f"the gradient of {bad[0]}" if bad else whole
            self.journal.write(step, {"train/nonfinite": 1.0, "train/nonfinite_in": where})
            message = f"{where} is not finite (loss {loss}, {len(bad)} of {len(squares)} tensors)"
            self._follow("nonfinite", self.policy.nonfinite, step, message)
            return {"nonfinite": (1.0, 1.0)}
        if measured.get("spike", (0.0,))[0]:
            self.journal.write(step, {"train/spike_loss": loss})
            message = (
                f"the loss leapt to {loss:.4g}, more than {self.policy.deviations:g} standard "
                f"deviations above the mean of {self.policy.window} steps"
            )
            self._follow("spike.policy", self.policy.spike, step, message)
            return {"spike": (1.0, 1.0)}
        return measured

    def _follow(self, field: str, policy: str, step: int, message: str):
        message = f"step {step}: {message}"
        if policy == "skip":
            self.bar.say(f"{message}; skipped")
            return
        if policy == "stop":
            raise FirthError(
                f"{message}; the parameters are those before the step. Lower the rate, clip, or "
                f"set --config.{field}=skip to leave such steps out, or rollback to go back"
            )
        if len(self.rollbacks) >= self.policy.limit:
            steps = ", ".join(str(back["step"]) for back in self.rollbacks) or "none"
            raise FirthError(
                f"{message}, and rollback.limit={self.policy.limit} is reached (back to steps "
                f"{steps}). Lower the rate, clip, or allow more"
            )
        back = max(step - self.policy.batches, 0)
        first, following = batch_of(back, self.rollbacks), batch_of(step, self.rollbacks)
        why = f"{message}; back to step {back}, leaving out batches {first} to {following - 1}"
        raise Rollback([*self.rollbacks, {"step": back, "batch": following, "why": why}])
