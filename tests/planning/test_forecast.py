"""What a run says that it takes: before it compiles, and after ten steps."""

import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from firth import recipe
from firth.planning import forecast, here, memory
from firth.planning.forecast import Forecast, announce, shapes, size
from firth.run.outline import outline
from firth.run.program import lay_out
from firth.training.partition import create_mesh

GIB = 2**30


class Bar:
    """Keeps what it is told."""

    def __init__(self, total=100, step=0, quiet=False):
        self.total, self.step, self.quiet, self.said = total, step, quiet, []

    def say(self, line):
        self.said.append(line)


@pytest.fixture(scope="module")
def tiny():
    """(config, parts of the run, its program, mesh) of a small BERT on one device."""
    overrides = ["--config.mesh.data=1", "--config.batch_size=16", "--config.model.vocab_size=200"]
    config = recipe.read_recipe("bert.py:tiny,length=32", overrides)
    outlined = outline(config)
    mesh = create_mesh(config.mesh, jax.devices()[:1])
    program = lay_out(outlined.model, outlined.objective, config, 100, mesh)
    run = SimpleNamespace(
        spec=outlined.spec,
        model=outlined.model,
        objective=outlined.objective,
        task=None,
        fresh=(),
    )
    return config, run, program, mesh


@pytest.fixture
def room(monkeypatch):
    """`room(bytes)` sets the memory that is free."""
    return lambda count: monkeypatch.setattr(here, "available", lambda: count)


def test_what_a_run_takes(tiny, room):
    config, run, program, mesh = tiny
    room(4 * GIB)
    bar = Bar(total=1000, step=40)
    announce(config, run, program, mesh, bar)
    (line,) = bar.said
    assert line.startswith("960 steps of 16 x 32 tokens, 491,520 in all; memory: ")
    assert line.endswith("of 4 GiB free here")
    state, kept = (int(number) for number in re.findall(r"(\d+) MiB", line))
    # Four float32 numbers a parameter (itself, its gradient, two moments), and the vocabulary.
    count = sum(leaf.size for leaf in jax.tree.leaves(program.state.params))
    assert state == pytest.approx(16 * count / 2**20, abs=1) and kept > 1


def test_more_memory_than_there_is_is_warned_of(tiny, room):
    config, run, program, mesh = tiny
    room(1 << 20)
    bar = Bar()
    announce(config, run, program, mesh, bar)
    assert len(bar.said) == 2 and "warning: that is more memory than there is" in bar.said[1]
    assert "--config.accumulate above 1" in bar.said[1]


def test_a_quiet_run_counts_nothing(tiny, monkeypatch):
    config, run, program, mesh = tiny
    monkeypatch.setattr(memory, "activation_bytes", None)
    bar = Bar(quiet=True)
    announce(config, run, program, mesh, bar)
    assert not bar.said


def test_micro_batches_keep_the_activations_of_one(tiny, room, monkeypatch):
    config, run, program, mesh = tiny
    asked = []
    monkeypatch.setattr(memory, "activation_bytes", lambda *a: asked.append(a[2]) or 0)
    room(GIB)
    for accumulate in (1, 4):
        announce(recipe.with_fields(config, {"accumulate": accumulate}), run, program, mesh, Bar())
    assert asked == [16, 4]


def test_labelled_rows_count_as_the_longest(tiny):
    config, run, *_ = tiny
    rows = {"tokens": np.zeros((4, 16), np.int32), "weight": np.zeros(4, np.float32)}
    config = recipe.with_fields(config, {"data.length": 128})
    task = SimpleNamespace(task=object(), batch=lambda step: rows)
    found = {name: leaf.shape for name, leaf in shapes(config, task, 0, count=4).items()}
    assert found == {"tokens": (16, 128), "weight": (16,)}
    assert shapes(tiny[0], run, 0) == outline(tiny[0]).batch


def test_activations_grow_with_the_rows_and_shrink_with_remat(tiny):
    config, _, program, _ = tiny
    params = program.state.params
    one, two = (memory.activation_bytes(outline(config), params, rows) for rows in (8, 16))
    assert 1.9 < two / one < 2.05
    less = outline(recipe.with_fields(config, {"model.remat": "full"}))
    assert memory.activation_bytes(less, params, 16) < 0.6 * two


@pytest.mark.parametrize(
    "name",
    sorted(
        set(recipe.shipped())
        - {"adapt.py", "finetune.py", "maxent.py", "quickstart.py", "squad.py", "tagger.py"}
        - {"ulmfit.py"}
        - {f"{family}.py" for family in recipe.OWN_RUNS}
    ),
)
def test_every_recipe_can_be_announced(name):
    """Objectives with memory, with a generator and with a teacher, too."""
    scans = name not in (
        "awd_lstm.py",
        "char_cnn_lstm.py",
        "char_lstm.py",
        "melis.py",
        "rhn.py",
    )  # whose layers differ
    overrides = ["--config.model.vocab_size=200", f"--config.model.scan={scans}"]
    outlined = outline(recipe.read_recipe(f"{name}:tiny,length=32", overrides))
    params = jax.eval_shape(
        outlined.model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8), "int32")
    )["params"]
    body = outlined.model.encoder.config
    layers, width = body.num_layers, body.hidden_size
    assert memory.activation_bytes(outlined, params, 4) > 4 * layers * 4 * 32 * width


@pytest.mark.slow
def test_activations_are_about_what_the_compiler_takes(tiny):
    """XLA's own figure, gradients included; such an estimate is good for a factor of two."""
    config, _, program, mesh = tiny
    outlined = outline(config)
    with jax.set_mesh(mesh):
        compiled = program.step.lower(program.state, outlined.batch).compile()
    taken = compiled.memory_analysis().temp_size_in_bytes
    gradients = memory.device_bytes(outlined, program)["gradients"]
    kept = memory.activation_bytes(outlined, program.state.params, 16)
    assert taken / 2 < kept + gradients < 2 * taken


class Clock:
    """A Goodput whose time is given."""

    def __init__(self):
        self.seconds = dict(step=0.0, input=0.0, logging=7.0, compile=50.0, evaluation=0.0)

    def total(self):
        return sum(self.seconds.values())


def stepped(first, last, seconds, until, slow=()):
    """What is said by a run whose first step compiles, some are `slow`, and others take so long."""
    bar, clock = Bar(), Clock()
    told = Forecast(bar, clock, last)
    for step in range(first + 1, until + 1):
        if step > first + 1:
            clock.seconds["step"] += 0.75 * seconds
            clock.seconds["input"] += 0.25 * seconds
            clock.seconds["step"] += 30.0 * (step - first in slow)
            clock.seconds["evaluation"] += 100
        told.after(step)
    return bar.said


@pytest.mark.parametrize("first", [0, 70])
def test_after_ten_steps_the_time_that_remains(first):
    assert stepped(first, first + 1000, 2.0, first + 10) == []
    (line,) = stepped(first, first + 1000, 2.0, first + 30)
    assert line.startswith("about 33 min for the other 989 steps at 2 s a step")


def test_steps_that_compile_for_rows_of_another_length_do_not_count():
    (line,) = stepped(0, 1000, 2.0, 30, slow=(2, 5, 6, 9))
    assert "989 steps at 2 s a step" in line


def test_more_than_a_day_is_warned_of():
    _, warning = stepped(0, 100_000, 2.0, 20)
    assert "warning: that is more than a day" in warning and "1,800 steps" in warning
    assert len(stepped(0, 40_000, 2.0, 20)) == 1


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_on_a_cpu_long_steps_are_alone(monkeypatch, backend):
    """The first that is timed, too: nobody knows yet how long it takes."""
    monkeypatch.setattr(forecast.jax, "default_backend", lambda: backend)
    clock = Clock()
    told, alone = Forecast(Bar(), clock, 1000), []
    for step, seconds in enumerate([0.0, 0.1, 0.1, 0.3, 0.3, 0.1] + [0.1] * 20 + [0.3]):
        alone.append(told.alone)
        clock.seconds["step"] += seconds
        clock.seconds["evaluation"] += 100
        told.after(step + 1)
    expected = [True, True, False, False, True, True, *[False] * 21]
    assert alone == (expected if backend == "cpu" else [False] * 27)
    assert told.alone == (backend == "cpu")


def test_a_run_that_is_over_by_then_says_nothing():
    assert stepped(0, forecast.STEPS + 1, 2.0, forecast.STEPS + 1) == []


def test_sizes():
    assert [size(x) for x in (3 * 2**20, 2**30, 3.21 * 2**30)] == ["3 MiB", "1 GiB", "3.2 GiB"]
