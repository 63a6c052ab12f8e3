"""Train steps of small recipes, compiled on any mesh, and random batches for them."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
from jax.sharding import NamedSharding

from firth import recipe
from firth.models.model import family as body
from firth.planning.compiler import hlo
from firth.run.outline import FREE, outline
from firth.run.program import lay_out
from firth.training import partition
from helpers.compiler import OPTIONS

WORDS, LENGTH, ROWS = 64, 16, 16
SMALL = dict(hidden_size=64, num_heads=8, intermediate_size=128, num_layers=2, vocab_size=WORDS)
SMALL |= dict(init_stddev=0.02, scan=True)  # which compiles faster
DROPOUT = dict(dropout=0.1, attention_dropout=0.1)
# Moments for recipes that train without: what is divided among devices is seen in them.
ADAM = {"optimizer.name": "adamw", "optimizer.b1": 0.9, "optimizer.b2": 0.999}
ADAM |= {"optimizer.eps": 1e-8, "optimizer.bias_correction": True}
EDGES = ("model.embedding_dropout", "model.output_dropout", "model.state_dropout")
FAMILIES = {  # name -> (recipe, changes)
    "bert": ("bert.py:tiny,length=16", {"model.scan": False, "model.num_layers": 1}),
    "roberta": ("roberta.py:tiny,length=16", {"accumulate": 2}),
    "albert": ("albert.py:tiny,length=16", {}),
    "distilbert": ("distilbert.py:tiny,length=16", {}),
    "electra": ("electra.py:tiny,length=16,sharing=embeddings", {}),
    "modernbert": ("modernbert.py:tiny,length=16", {}),
    "xlnet": ("xlnet.py:tiny,length=16", {}),
    "transformer_xl": ("transformer_xl.py:tiny,length=16", {}),
    "gpt": ("gpt.py:tiny,length=16", {"model.embedding_dropout": 0.1}),
    "gpt2": ("gpt2.py:tiny,length=16", {"model.embedding_dropout": 0.1}),
    "lstm": ("lstm.py:tiny,length=16", ADAM | dict.fromkeys(EDGES, 0.1)),
    "rnn": ("rnn.py:tiny,length=16", ADAM | {"model.num_layers": 1}),
    "awd_lstm": (
        "awd_lstm.py:tiny,length=16",
        ADAM | {"model.embedding_size": 32, "model.scan": False},
    ),
    "rhn": ("rhn.py:tiny,length=16", ADAM | dict.fromkeys(EDGES, 0.1) | {"model.scan": False}),
    "char_cnn_lstm": (
        "char_cnn_lstm.py:tiny,length=16",
        ADAM | {"model.output_dropout": 0.1, "model.scan": False},
    ),
    "elmo": ("elmo.py:tiny,length=16", ADAM | {"model.cell_size": 64, "model.scan": False}),
    "feedforward": (
        "feedforward.py:tiny,length=16",
        ADAM | {"model.num_layers": 1, "model.scan": False},
    ),
}


def small(family: str, changes=None):
    """The recipe of a family with a body of two small layers, dropout on, and these changes."""
    name, own = FAMILIES[family]
    config = recipe.read_recipe(name)
    known = {field.name for field in dataclasses.fields(body(config.model.family).Config)}
    given = {name: value for name, value in (SMALL | DROPOUT).items() if name in known}
    fields = {f"model.{name}": value for name, value in given.items()}
    fields |= {"batch_size": ROWS, "accumulate": 1} | own | (changes or {})
    with config.unlocked():
        config.schedule = dict(name="constant", lr=1e-3, warmup=0)
    return recipe.with_fields(config, fields)


def compiled(family: str, mesh=None, devices=None, changes=None, options=OPTIONS):
    """(program, compiled step, mesh, shapes of a batch) of a small recipe on a mesh."""
    fields = {f"mesh.{name}": value for name, value in (mesh or {}).items()}
    config = small(family, (changes or {}) | fields)
    over = partition.create_mesh(config.mesh, devices)
    run = outline(config)
    program = lay_out(run.model, run.objective, config, 100, over)
    rows = NamedSharding(over, partition.BATCH)
    batch = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=rows)
        for name, array in run.batch.items()
    }
    with jax.set_mesh(over):
        lowered = program.step.lower(program.state, batch)
    return program, lowered.compile(compiler_options=options), over, batch


def random_batch(shapes, rng) -> dict[str, np.ndarray]:
    """Random values for every array that a view yields."""
    batch = {}
    for name, array in shapes.items():
        if name == "mask":
            lengths = rng.integers(array.shape[1] // 2, array.shape[1] + 1, (array.shape[0], 1))
            values = np.arange(array.shape[1]) < lengths
        elif name in ("tokens", "following"):
            values = rng.integers(FREE, WORDS, array.shape)
        elif name == "example":
            values = np.arange(array.shape[0])
        else:
            values = rng.integers(0, 2, array.shape)
        batch[name] = values.astype(array.dtype)
    return batch


def trained(family: str, mesh=None, devices=None, initial=None, steps=10) -> SimpleNamespace:
    """What a recipe does on a mesh, from `initial` (a state as numpy) or its own random values.

    Its `initial` state, `losses` [steps], `params` by path after them, the `program` and what its
    step `sent`.
    """
    program, step, over, shapes = compiled(family, mesh, devices)
    rng, losses = np.random.default_rng(0), []
    if initial is None:
        initial = jax.device_get(program.init())
    with jax.set_mesh(over):
        state = jax.device_put(initial, program.shardings)
        for _ in range(steps):
            batch = partition.put_batch(random_batch(shapes, rng), over)
            state, measured, _ = step(state, batch)
            losses.append(float(measured["loss"][0]))
    leaves = jax.tree_util.tree_flatten_with_path(state.params)[0]
    return SimpleNamespace(
        initial=initial,
        losses=np.array(losses),
        params={partition.leaf_path(path): np.asarray(leaf) for path, leaf in leaves},
        program=program,
        sent=hlo.collectives(step.as_text(), over.shape),
    )
