"""What a run compiles: the train step and the initial state, laid out over a mesh.

The loop runs it, `firth plan --compile` compiles it for chips that are not here, and the benches
time it: all the same function.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding

from firth.errors import FirthError
from firth.models.model import bound
from firth.run.reduction import compiler_options, over_data
from firth.training import optim, partition, recovery
from firth.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Program:
    """The jitted functions of a run on one mesh.

    `init()` gives the state of step 0, `step(state, batch)` the next one with metrics and squared
    gradient norms, and takes the state's memory. `state` is its tree of ShapeDtypeStruct with
    their shardings, `shardings` those alone.
    """

    init: Callable[[], TrainState]
    step: Callable
    state: TrainState
    shardings: TrainState


def lay_out(model, objective, config, steps: int, mesh, fresh: tuple[str, ...] = ()) -> Program:
    """The program of a model and its objective, by a config, on a mesh.

    `steps` is the length of the schedule. The mesh may be of devices that are only described (for
    compiling ahead of time). `fresh`: expressions of parameters that are trained whatever the
    config freezes.
    """
    optimizer = optim.create_optimizer(config.optimizer, objective.frozen, fresh)
    schedule = optim.create_schedule(config.schedule, steps)
    window = recovery.read_policy(config).window

    def init(key):
        tokens = jnp.zeros((1, 8), jnp.int32)
        carry = objective.carry(model, config.batch_size)
        return TrainState.create(model.init(key, tokens)["params"], optimizer, carry, window)

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
        state=partition.placed(shapes, shardings),
        shardings=shardings,
    )


def check_rows(config, mesh):
    """Refuse a batch that the devices, micro-batches or processes do not divide."""
    rows = mesh.shape["data"] * mesh.shape["fsdp"] * config.accumulate
    if config.batch_size % rows or config.batch_size % jax.process_count():
        raise FirthError(
            f"batch_size={config.batch_size} is not a multiple of data x fsdp x accumulate = {rows}"
        )


def make_step(model, objective, optimizer, schedule, config, mesh=None, fresh=()):
    """The train step: a pure function (state, batch) -> (state, metrics, squared norms).

    Metrics are {name: (sum, weight)}; the norms are one number a parameter, so that the host can
    name the tensor in which a value stopped being finite. Such a step changes no parameter and
    empties the memory, and so does one whose loss is a spike.
    `mesh` is that of the devices that it runs on; without, nothing says where anything lies.
    `fresh` is as `lay_out` has it.
    """
    static = config.objective.get("static", False)
    policy = recovery.read_policy(config)
    still = (*config.optimizer.freeze, *objective.frozen)
    frozen = optim.path_mask(still, but=fresh)
    gradient = make_gradient(model, objective, frozen, config)
    gradient = over_data(gradient, objective, frozen, config, mesh)

    def scatter(tree):
        """Lay parameters or gradients out as the moments are: under ZeRO-1, over `data` too."""
        if mesh is None or not config.mesh.zero1:
            return tree
        specs = partition.moment_specs(tree, frozen(tree), mesh)
        return jax.tree.map(
            lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec)),
            tree,
            specs,
        )

    def step(state, batch):
        # Every random choice hangs on (seed, step), or for static masks on the example alone.
        seed = jax.random.key(config.seed, impl=config.rng)
        corrupt_key, dropout_key = jax.random.split(jax.random.fold_in(seed, state.step))
        batch = objective.corrupt(batch, seed if static else corrupt_key)
        weights = objective.weights(batch)  # of the whole batch: accumulation stays exact
        if state.carry:
            batch |= {"carry": state.carry}
        (loss, measured, grads), carry = gradient(state.params, batch, weights, dropout_key)

        rate = schedule(state.step)
        grads, old_params = scatter(grads), scatter(state.params)
        squares = jnp.stack([jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)])
        updates, opt_state = optimizer.update(grads, state.opt_state, old_params)
        params = optax.apply_updates(old_params, jax.tree.map(lambda u: -rate * u, updates))

        finite, spike, losses = recovery.check_loss(state.losses, loss, squares, policy.deviations)
        counts = finite & ~spike
        new = (params, opt_state, carry[0] if carry else {})
        # The next batch does not go on where the memory before this one ended.
        empty = objective.carry(model, len(batch["mask"]))
        old = (old_params, state.opt_state, empty)
        kept = jax.tree.map(lambda new, old: jnp.where(counts, new, old), new, old)
        kept = scatter(kept[0]), *kept[1:]
        state = TrainState(state.step + 1, state.skipped + ~counts, *kept, losses)
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

    `frozen` makes a tree of bool of one of parameters, True where nothing is learned.
    `weights` are what each term of the loss is divided by, `key` is that of dropout. The carry is a
    list: that of the next batch, or nothing.
    """
    losses_of = bound(model, functools.partial(objective.losses, train=True))

    def gradient(params, batch, weights, key):
        def loss_of(params, micro, number):
            params = jax.tree.map(
                lambda p, stop: jax.lax.stop_gradient(p) if stop else p, params, frozen(params)
            )
            rngs = {"dropout": jax.random.fold_in(key, number)}
            sums, measured, *carry = losses_of(params, micro, rngs=rngs)
            terms = objective.coefficients
            loss = sum(c * sums[t] / jnp.maximum(weights[t], 1.0) for t, c in terms.items())
            return loss, (measured, carry)

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
    """[B, ...] to [n, B/n, ...], each device keeping a share of its own rows in every part."""
    return x.reshape(x.shape[0] // n, n, *x.shape[1:]).swapaxes(0, 1)


def join_rows(x):
    """The inverse: [n, B/n, ...] to [B, ...]."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
