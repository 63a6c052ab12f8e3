"""The functions that a run compiles: the train step and the initial state, sharded over a mesh.

The loop runs them, `firth plan --compile` compiles them for chips of other machines, and the
benchmarks time them: all use the same functions.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from firth.errors import FirthError
from firth.layers.affine import PRODUCTS
from firth.layers.classifiers.batch_norm import STATISTICS, follow
from firth.models.model import bound
from firth.run.reduction import compiler_options, over_data
from firth.training import optim, partition, plateau, recovery
from firth.training.efficient.freezing import read_freezing
from firth.training.efficient.lora import read_lora
from firth.training.state import TrainState
from firth.training.unfreezing import gradual

FACTORS = 1  # folded into the key of the initial values, for those of LoRA


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions of a run on one mesh.

    `init()` returns the state of step 0. `step(state, batch)` returns the next state, metrics and
    squared gradient norms. `heed(state, loss)` returns the state after an evaluation, as its policy
    has it. Both donate the buffers of the old state. `begin(params)` returns the policy's memory of
    other initial parameters. `state` is the tree of ShapeDtypeStruct with shardings, `shardings`
    that of the shardings alone.
    """

    init: Callable[[], TrainState]
    step: Callable
    heed: Callable
    begin: Callable
    policy: plateau.Policy
    state: TrainState
    shardings: TrainState


def lay_out(
    model,
    objective,
    config,
    steps: int,
    mesh,
    fresh: tuple[str, ...] = (),
    stages: tuple[int, ...] = (),
) -> Program:
    """The program of a model and its objective on a mesh.

    `steps` is the length of the schedule. The mesh may hold devices of a described topology, for
    compiling ahead of time. `fresh` holds expressions for parameters that are trained even if the
    config freezes them. `stages` are the first steps of the stages of gradual unfreezing.
    """
    freezing = read_freezing(config, objective.frozen, fresh)
    optimizer = optim.create_optimizer(config.optimizer, freezing.patterns, freezing.but)
    optimizer = gradual.by_stages(optimizer, stages) if stages else optimizer
    schedule = gradual.create_staged_schedule(config.schedule, steps, stages)
    window = recovery.read_policy(config).window
    policy, lora = plateau.create_policy(config), read_lora(config)

    def init(key):
        tokens = jnp.zeros((1, 8), jnp.int32)
        carry = objective.carry(model, config.batch_size)
        params = model.init(key, tokens)["params"]
        params = lora.attach(params, jax.random.fold_in(key, FACTORS)) if lora else params
        freezing.check(params)
        return TrainState.create(params, optimizer, carry, window, policy.init(params))

    def heed(state, loss):
        params, own = policy.after_evaluation(state.plateau, state.params, loss)
        return state.replace(params=params, plateau=own)

    shapes = jax.eval_shape(init, jax.random.key(config.seed, impl=config.rng))
    shardings = partition.shardings_of(shapes, mesh, zero1=config.mesh.zero1)
    step = jax.jit(
        make_step(model, objective, optimizer, schedule, config, mesh, fresh),
        in_shardings=(shardings, None),
        out_shardings=(shardings, None, None),
        donate_argnums=0,
        compiler_options=compiler_options(config, mesh),
    )
    create = jax.jit(init, out_shardings=shardings)
    return Program(
        init=lambda: create(jax.random.key(config.seed, impl=config.rng)),
        step=step,
        heed=jax.jit(heed, out_shardings=shardings, donate_argnums=0),
        begin=jax.jit(policy.init, out_shardings=shardings.plateau),
        policy=policy,
        state=partition.placed(shapes, shardings),
        shardings=shardings,
    )


def check_rows(config, mesh):
    """Raise FirthError if devices, micro-batches or processes do not divide the batch."""
    rows = mesh.shape["data"] * mesh.shape["fsdp"] * config.accumulate
    if config.batch_size % rows or config.batch_size % jax.process_count():
        raise FirthError(
            f"batch_size={config.batch_size} is not a multiple of data x fsdp x accumulate = {rows}"
        )


def with_products(model, config):
    """The model, multiplying in `product_dtype`; FirthError for one that does not exist."""
    if (dtype := config.product_dtype) not in PRODUCTS:
        raise FirthError(f"product_dtype={dtype!r} is unknown; one of {', '.join(PRODUCTS)}")
    return model.clone(products=dtype)


def make_step(model, objective, optimizer, schedule, config, mesh=None, fresh=()):
    """The train step: a pure function (state, batch) -> (state, metrics, squared norms).

    Metrics are {name: (sum, weight)}. There is one squared norm for each parameter, so that the
    host can name the tensor with a non-finite value. Such a step changes no parameter and empties
    the model's memory; so does a step whose loss is a spike.
    `mesh` holds the devices of the step; without it, the step sets no shardings. `fresh` is as in
    `lay_out`.
    """
    static = config.objective.get("static", False)
    policy, heeding = recovery.read_policy(config), plateau.create_policy(config)
    frozen = read_freezing(config, objective.frozen, fresh).mask
    gradient = make_gradient(with_products(model, config), objective, frozen, config)
    gradient = over_data(gradient, objective, frozen, config, mesh)

    def scatter(tree):
        """Shard parameters or gradients as the moments: under ZeRO-1, over `data` as well."""
        if mesh is None or not config.mesh.zero1:
            return tree
        specs = partition.moment_specs(tree, frozen(tree), mesh)
        return jax.tree.map(
            lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
            tree,
            specs,
        )

    def step(state, batch):
        # Random choices depend on (seed, step) alone; static masks depend on the example alone.
        seed = jax.random.key(config.seed, impl=config.rng)
        corrupt_key, dropout_key = jax.random.split(jax.random.fold_in(seed, state.step))
        batch = objective.corrupt(batch, seed if static else corrupt_key)
        weights = objective.weights(batch)  # of the whole batch, so that accumulation is exact
        if state.carry:
            batch |= {"carry": state.carry}
        trained = heeding.trained(state.plateau, state.params)
        (loss, measured, grads), carry = gradient(trained, batch, weights, dropout_key)

        rate = schedule(state.step) * heeding.factor(state.plateau)
        grads, old_params, trained = scatter(grads), scatter(state.params), scatter(trained)
        squares = jnp.stack([jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)])
        finite, spike, losses = recovery.check_loss(state.losses, loss, squares, policy.deviations)
        counts = finite & ~spike
        updates, opt_state = optimizer.update(
            grads, state.opt_state, trained, step=state.step, counts=counts
        )
        trained = optax.apply_updates(trained, jax.tree.map(lambda u: -rate * u, updates))
        trained = follow(trained, old_params, measured.pop(STATISTICS))
        params, own = heeding.after_step(state.plateau, old_params, trained)

        new = (params, carry[0] if carry else {}, own)
        # A skipped step empties the memory: the next batch does not continue the text before it.
        empty = objective.carry(model, len(batch["mask"]))
        old = (old_params, empty, state.plateau)
        chosen = jax.tree.map(lambda new, old: jnp.where(counts, new, old), new, old)
        chosen = scatter(chosen[0]), opt_state, *chosen[1:]
        state = TrainState(state.step + 1, state.skipped + ~counts, *chosen, losses)
        measured |= {
            "loss": (loss, jnp.ones(())),
            "grad_norm": (jnp.sqrt(squares.sum()), jnp.ones(())),
            "learning_rate": (rate, jnp.ones(())),
            "pad_fraction": ((~batch["mask"]).sum(), jnp.asarray(batch["mask"].size)),
        }
        if losses is not None:
            measured["spike"] = (spike.astype(jnp.float32), jnp.ones(()))
        return state, measured, squares

    return step


def make_gradient(model, objective, frozen, config):
    """Function (params, batch, weights, key) -> ((loss, metrics, gradient), carry).

    `frozen` maps a tree of parameters to a tree of bool, True for frozen ones. Each term of the
    loss is divided by its entry of `weights`; `key` is the dropout key. The carry is a list with
    the carry of the next batch, or an empty one. Among the metrics, STATISTICS has those of layers.
    """
    losses_of = bound(model, functools.partial(objective.losses, train=True), STATISTICS)

    def gradient(params, batch, weights, key):
        def loss_of(params, micro, number):
            params = jax.tree.map(
                lambda p, stop: jax.lax.stop_gradient(p) if stop else p, params, frozen(params)
            )
            rngs = {"dropout": jax.random.fold_in(key, number)}
            (sums, measured, *carry), collected = losses_of(params, micro, rngs=rngs)
            terms = objective.coefficients
            loss = sum(c * sums[t] / jnp.maximum(weights[t], 1.0) for t, c in terms.items())
            return loss, (measured | {STATISTICS: collected.get(STATISTICS, {})}, carry)

        def part(micro, number):
            differentiate = jax.value_and_grad(loss_of, has_aux=True)
            (loss, (measured, carry)), grads = differentiate(params, micro, number)
            return (loss, measured, grads), carry

        if config.accumulate == 1:
            return part(batch, 0)
        micros = jax.tree.map(functools.partial(split_rows, n=config.accumulate), batch)
        shapes, _ = jax.eval_shape(part, jax.tree.map(lambda x: x[0], micros), 0)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

        def accumulate(total, numbered):
            added, carry = part(*numbered)
            return jax.tree.map(jnp.add, total, added), carry

        numbered = (micros, jnp.arange(config.accumulate))
        total, carry = jax.lax.scan(accumulate, zeros, numbered)
        return total, jax.tree.map(join_rows, carry)

    return gradient


def split_rows(x, n: int):
    """[B, ...] to [n, B/n, ...]; every part has an equal share of each device's rows."""
    return x.reshape(x.shape[0] // n, n, *x.shape[1:]).swapaxes(0, 1)


def join_rows(x):
    """The inverse of `split_rows`: [n, B/n, ...] to [B, ...]."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
