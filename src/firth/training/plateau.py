"""What a run does about its held-out loss: halve or drop the rate, average the weights, end early.

The loss is that of the run's own evaluator, which saves the state after each evaluation. What a
policy remembers is part of that state. So a run that is killed goes on as if it had not been.

    config.plateau = dict(name="halving", improvement=1.003)
"""

import dataclasses

import jax
import jax.numpy as jnp

from firth.errors import FirthError

METRIC = "heldout/lm_loss"


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy, with the memory `own`, a dict of arrays in the train state.

    The defaults are those of a run that heeds no loss, and has no memory. `own["stopped"]` is
    True once training should end.

    metric: the loss that it heeds, a metric of the run's own evaluator.
    """

    metric: str = METRIC

    def heeded(self, best: str) -> str:
        """The metric that it heeds; `best` is the one that chooses the best checkpoint."""
        del best
        return self.metric

    def reason(self, best: str) -> str:
        """Why it ends a run, in words."""
        del best
        return "the held-out loss no longer falls"

    def init(self, params) -> dict:
        """The memory at step 0."""
        del params
        return {}

    def factor(self, own: dict):
        """What the schedule's rate is multiplied by."""
        del own
        return 1.0

    def trained(self, own: dict, params):
        """The parameters that a step changes; `params` are those that the run is measured by."""
        del own
        return params

    def after_step(self, own: dict, params, trained):
        """(params, own) after a step has made `trained`."""
        del params
        return trained, own

    def after_evaluation(self, own: dict, params, loss):
        """(params, own) after an evaluation of `params`."""
        del loss
        return params, own


@dataclasses.dataclass(frozen=True)
class Halving(Policy):
    """Halve the rate at every evaluation, from the first one with little gain on (rnnlm).

    A gain is little if the loss before is less than `improvement` times the new one. At the second
    time the run ends. Where the loss has risen, the parameters go back to those before (Mikolov et
    al. 2010, section 2; `trainNet` of the released code).
    """

    improvement: float = 1.003

    def init(self, params):
        """Copies of the parameters, to go back to."""
        return dict(
            factor=jnp.ones([]),
            halves=jnp.zeros([], bool),
            stopped=jnp.zeros([], bool),
            loss=jnp.full([], jnp.inf),
            kept=jax.tree.map(jnp.copy, params),
        )

    def factor(self, own):
        """1, 1/2, 1/4 and so on."""
        return own["factor"]

    def after_evaluation(self, own, params, loss):
        """See the class. A loss that is not finite has risen."""
        little = ~(loss * self.improvement <= own["loss"])
        kept = _where(loss <= own["loss"], params, own["kept"])
        stopped, halves = little & own["halves"], little | own["halves"]
        factor = jnp.where(halves & ~stopped, own["factor"] / 2, own["factor"])
        own = dict(factor=factor, halves=halves, stopped=stopped, loss=loss)
        return kept, own | {"kept": jax.tree.map(jnp.copy, kept)}


@dataclasses.dataclass(frozen=True)
class Drop(Policy):
    """Multiply the rate by `factor_of_drop` once, when the loss stops falling; then end (lamb).

    It stops falling where `patience` evaluations have brought no lower one. The drop comes at
    evaluation `latest` at the latest. After it, `last_patience` such evaluations end the run
    (Melis et al. 2017, section 4).
    """

    factor_of_drop: float = 0.1
    patience: int = 26
    latest: int = 900
    last_patience: int = 30

    def init(self, params):
        """Counts of evaluations."""
        del params
        return dict(
            dropped=jnp.zeros([], bool),
            stopped=jnp.zeros([], bool),
            best=jnp.full([], jnp.inf),
            evaluations=jnp.zeros([], jnp.int32),
            since=jnp.zeros([], jnp.int32),  # the lowest loss, or the drop
        )

    def factor(self, own):
        """1, later `factor_of_drop`."""
        return jnp.where(own["dropped"], self.factor_of_drop, 1.0)

    def after_evaluation(self, own, params, loss):
        """See the class."""
        since = jnp.where(loss < own["best"], 0, own["since"] + 1)
        evaluations, dropped = own["evaluations"] + 1, own["dropped"]
        drops = ~dropped & ((since >= self.patience) | (evaluations >= self.latest))
        return params, dict(
            dropped=dropped | drops,
            stopped=dropped & (since >= self.last_patience),
            best=jnp.fmin(loss, own["best"]),
            evaluations=evaluations,
            since=jnp.where(drops, 0, since),
        )


@dataclasses.dataclass(frozen=True)
class Averaging(Policy):
    """Average the parameters of all steps once the loss stops falling (NT-ASGD).

    It stops falling where it is above the lowest one of all but the last `patience` evaluations
    (Merity et al. 2018, algorithm 1). From then on the mean is measured, while steps go on from the
    parameters themselves. `from_start` averages from the first step on, and ends the run where the
    loss stops falling: the second stage of the released code (`finetune.py`).
    """

    patience: int = 5
    from_start: bool = False

    def init(self, params):
        """The parameters that steps change, beside their mean."""
        return dict(
            averages=jnp.full([], self.from_start),
            stopped=jnp.zeros([], bool),
            steps=jnp.zeros([], jnp.float32),  # since it averages
            best=jnp.full([], jnp.inf),  # of all losses but the last
            last=jnp.full([self.patience], jnp.inf),  # losses, oldest first
            trained=jax.tree.map(jnp.copy, params),
        )

    def trained(self, own, params):
        """Those of the last step, not the mean."""
        return own["trained"]

    def after_step(self, own, params, trained):
        """Move the mean towards the step's parameters; before there is one, it is they.

        As torch's ASGD has it, the mean begins with the second step.
        """
        steps = jnp.where(own["averages"], own["steps"] + 1, own["steps"])
        old = 1 - 1 / jnp.maximum(steps - 1, 1)  # the share of the mean so far
        mean = jax.tree.map(lambda x, new: new + old * (x - new), params, trained)
        return mean, own | dict(steps=steps, trained=jax.tree.map(jnp.copy, trained))

    def after_evaluation(self, own, params, loss):
        """See the class."""
        risen = loss > own["best"]
        return params, own | dict(
            averages=own["averages"] | risen,
            stopped=own["stopped"] | (risen & self.from_start),
            best=jnp.fmin(own["best"], own["last"][0]),
            last=jnp.append(own["last"][1:], loss),
        )


@dataclasses.dataclass(frozen=True)
class PerplexityDecay(Policy):
    """Multiply the rate by `factor_of_decay` after an evaluation of little gain (Kim et al. 2016).

    A gain is little if the perplexity has not fallen by more than `least_gain` since the evaluation
    before (section 4.2; `main.lua` of the released code). The run never ends early.
    """

    factor_of_decay: float = 0.5
    least_gain: float = 1.0

    def init(self, params):
        """The perplexity before."""
        del params
        return dict(
            factor=jnp.ones([]), stopped=jnp.zeros([], bool), perplexity=jnp.full([], jnp.inf)
        )

    def factor(self, own):
        """A power of `factor_of_decay`."""
        return own["factor"]

    def after_evaluation(self, own, params, loss):
        """See the class. A loss that is not finite is no gain."""
        perplexity = jnp.exp(loss)
        gains = own["perplexity"] - perplexity > self.least_gain
        factor = jnp.where(gains, own["factor"], own["factor"] * self.factor_of_decay)
        return params, own | dict(factor=factor, perplexity=perplexity)


@dataclasses.dataclass(frozen=True)
class Patience(Policy):
    """End after `patience` evaluations without a better value of what chooses the best checkpoint.

    The parameters and the rate are left alone (Prechelt 1998, section 2.2, UP with strips of an
    evaluation). `lower` says that less is better.
    """

    metric: str = ""
    patience: int = 3
    lower: bool = False

    def heeded(self, best):
        """That of the best checkpoint."""
        return best

    def reason(self, best):
        """With the metric and the patience."""
        times = f"the last {self.patience} evaluations" if self.patience > 1 else "the last one"
        return f"{best} has not {'fallen' if self.lower else 'risen'} in {times}"

    def init(self, params):
        """The best value, and how many evaluations ago it was."""
        del params
        return dict(
            stopped=jnp.zeros([], bool),
            best=jnp.full([], -jnp.inf),
            since=jnp.zeros([], jnp.int32),
        )

    def after_evaluation(self, own, params, loss):
        """See the class. A value that is not finite is no better one."""
        value = -loss if self.lower else loss
        better = jnp.isfinite(value) & (value > own["best"])
        since = jnp.where(better, 0, own["since"] + 1)
        best = jnp.where(better, value, own["best"])
        return params, dict(stopped=since >= self.patience, best=best, since=since)


POLICIES = {"perplexity": PerplexityDecay, "halving": Halving, "drop": Drop, "nt_asgd": Averaging}


def create_policy(config) -> Policy:
    """The policy of a config's `plateau` section, or of its `patience`; else one that does nothing.

    Raises FirthError for an unknown name or field, a number out of range, and a run that is not
    evaluated.
    """
    fields = dict(config.get("plateau", {}))
    if patience := config.get("patience", 0):
        return _patience(patience, config, fields)
    if not fields:
        return Policy(metric="")
    name = fields.pop("name", "")
    if name not in POLICIES:
        raise FirthError(f"plateau.name={name!r} is unknown; choose one of {', '.join(POLICIES)}")
    known = {field.name: field.default for field in dataclasses.fields(POLICIES[name])}
    if unknown := sorted(fields.keys() - known.keys()):
        raise FirthError(f"plateau {name!r} has no field {unknown[0]!r}; it has {', '.join(known)}")
    for field, value in fields.items():
        if isinstance(known[field], int | float) and value <= 0 and known[field]:
            raise FirthError(f"plateau.{field}={value!r}: expected more than 0")
    if not config.eval.every:
        raise FirthError("eval.every=0, but config.plateau heeds the loss at every evaluation")
    return POLICIES[name](**fields)


def _patience(patience: int, config, fields: dict) -> Policy:
    if patience < 0:
        raise FirthError(f"patience={patience}: expected a number of evaluations, or 0 for no end")
    if fields:
        raise FirthError(f"patience={patience} and plateau.name both end the run; set one of them")
    if not config.checkpoint.best:
        raise FirthError(
            f"patience={patience} heeds the metric that chooses the best checkpoint; set "
            "checkpoint.best"
        )
    return Patience(patience=patience, lower=config.checkpoint.best_mode == "min")


def has_stopped(state) -> bool:
    """Whether the policy has ended the run."""
    return bool(jax.device_get(state.plateau["stopped"])) if state.plateau else False


def _where(condition, tree, other):
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), tree, other)
