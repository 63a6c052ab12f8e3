"""Failed steps: a non-finite loss or gradient, or a loss spike far above the losses before it.

The step detects a failure on the device. A failed step changes only the step count and the window
of losses. It also empties the model's memory, since the next batch does not continue the text of
the one before. The recipe decides what follows, by `nonfinite` and `spike.policy`:

    stop      the run ends; its checkpoints hold the parameters before the step
    skip      the step is skipped and counted
    rollback  the run goes back by `rollback.batches` steps and skips the batches up to this one
              (Chowdhery et al. 2022, section 5.1, do so by hand, with 200 to 500 batches); it stops
              after `rollback.limit` rollbacks

A rollback is a restart that skips batches. It starts from any checkpoint at or before the step to
which it goes back, and takes the same batches as before up to that step. So the outcome depends
neither on the times of the checkpoints nor on where a run was killed. Every checkpoint stores which
batches were skipped.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError

POLICIES = ("stop", "skip", "rollback")


@dataclasses.dataclass(frozen=True)
class Policy:
    """A recipe's settings for failed steps; `deviations` is 0 if spikes are not detected."""

    nonfinite: str
    spike: str
    deviations: float
    window: int
    batches: int
    limit: int

    @property
    def rollback_steps(self) -> int:
        """The number of steps that a rollback may go back; 0 if the policy has no rollback."""
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
    """Check the loss and gradient of a step, and update the window of losses.

    Args:
      losses: float32 [W], the losses of the last steps, newest last, NaN before the first step; or
        None if spikes are not detected.
      loss: float32 [], of this step.
      squares: float32 [parameters], squared gradient norms.
      deviations: a spike is this many standard deviations above the mean of the window.

    Returns:
      finite: bool [].
      spike: bool []; False until the window is full.
      losses: the new window, or None. A spike enters with the value of the bound, so that a loss
        that stays high soon stops being a spike. A step that is not finite does not enter.
    """
    finite = jnp.isfinite(loss) & jnp.isfinite(squares.sum())
    if losses is None:
        return finite, jnp.zeros((), bool), None
    bound = losses.mean() + deviations * losses.std()
    spike = finite & (loss > bound)  # False while the window has a NaN
    entered = jnp.roll(losses, -1).at[-1].set(jnp.where(spike, bound, loss))
    return finite, spike, jnp.where(finite, entered, losses)


# ------------------------------------------------------------------------------------ the host


class Rollback(Exception):  # noqa: N818 - no error: the loop starts again
    """Go back and skip batches; `rollbacks` is the new list of rollbacks of the run."""

    def __init__(self, rollbacks: list[dict]):
        super().__init__(rollbacks[-1]["why"])
        self.rollbacks = rollbacks


def batch_of(step: int, rollbacks: list[dict]) -> int:
    """The number of the batch for the step that follows `step` others.

    `rollbacks` holds {step, batch, why} of each rollback, oldest first: from `step` on, the batches
    count up from `batch`. The newest rollback at or before this step decides.
    """
    return next(
        (b["batch"] + step - b["step"] for b in reversed(rollbacks) if step >= b["step"]), step
    )


def skip_batches(batch, rollbacks: list[dict]):
    """Function like `batch(step)` of a view, but without the batches that rollbacks skip.

    After a jump in the number of the batch, the rows do not continue the text in a model's memory.
    `reset` is then set for all rows.
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
    """Follows the policy on the host, step by step; `names` holds the paths of the parameters."""

    def __init__(self, policy: Policy, names: list[str], rollbacks: list[dict], journal, bar):
        self.policy, self.names, self.rollbacks = policy, names, rollbacks
        self.journal, self.bar = journal, bar

    def check(self, step: int, measured: dict, squares: np.ndarray) -> dict:
        """The metrics of a finished step, or {"nonfinite" or "spike": (1.0, 1.0)} of a failed one.

        `step` is its number, from 1. Raises FirthError if the policy is to stop, Rollback if it is
        to go back.
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
                f"set --config.{field}=skip to skip such steps, or rollback to go back"
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
