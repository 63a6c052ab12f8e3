"""Evaluation by other options than training: rows, memory, and how the body sees."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from firth import recipe
from firth.errors import FirthError
from firth.recipe import with_fields
from firth.run import recorded
from firth.run.evaluator import Heldout, with_options
from firth.run.experiment import build
from firth.training.partition import create_mesh

SMALL = {  # of Transformer-XL: a layer 16 wide, rows of 8 with a memory of 8
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.num_heads": 2,
    "model.intermediate_size": 32,
    "model.init_stddev": 0.5,  # so that what a token sees moves the loss
    "objective.memory": 8,
    "data.heldout": 0.2,
    "eval.batch_size": 4,
    "eval.batches": 12,
    "eval.memory": 8,
}


def one_device():
    return create_mesh(dict(data=1, fsdp=1, tensor=1), jax.devices()[:1])


@pytest.fixture(scope="module")
def loss(store):
    """`loss(field=value)`: the held-out loss of the same parameters, measured by other fields."""
    mesh = one_device()
    config = recipe.read_recipe("transformer_xl.py:tiny,length=8")
    config = with_fields(config, SMALL | {"data.store": str(store)})
    run = build(config, mesh)
    model, tokens_BL = run.model, run.batch(0)["tokens"]
    params = model.init(jax.random.key(1), np.zeros((1, 8), np.int32))["params"]

    def measure(**fields):
        before = fields.pop("without_the_fields", False)
        changed = with_fields(config, {k.replace("__", "."): v for k, v in fields.items()})
        if before:
            with changed.unlocked():
                del changed.eval["length"], changed.eval["model"]
        run = build(changed, mesh)
        if not any(name.startswith("model") for name in fields):  # training is as it was
            assert run.model == model and np.array_equal(run.batch(0)["tokens"], tokens_BL)
        (held, *_) = run.heldout["heldout"]()
        assert held["tokens"].shape[1] == fields.get("eval__length", 8)
        return Heldout(run, changed, mesh).run(SimpleNamespace(params=params))["heldout/lm_loss"]

    return measure


def test_options_of_evaluation_are_those_of_a_model_that_has_them(loss):
    """Of the body alone: trained with neither, measured with both, as if it always had them."""
    plain = loss()
    assert loss(without_the_fields=True) == plain  # a config of before
    for options in (dict(clamp_len=3), dict(same_length=True)):
        always = loss(**{f"model__{name}": value for name, value in options.items()})
        measured = loss(**{f"eval__model__{name}": value for name, value in options.items()})
        assert measured == pytest.approx(always, rel=1e-7)
        assert abs(measured - plain) > 1e-4
    # Nothing is farther than the memory and the row, 15 places.
    assert loss(eval__model__clamp_len=15) == pytest.approx(plain, rel=1e-6)


def test_how_rows_are_cut_means_nothing_where_memory_holds_all(loss):
    """Every token then sees all before it, whatever the length of a row (section 3.2)."""
    long = loss(eval__memory=512, eval__batches=1000)
    cut = loss(eval__memory=512, eval__batches=1000, eval__length=5)
    assert cut == pytest.approx(long, rel=1e-5)
    assert abs(loss(eval__batches=1000, eval__length=5) - long) > 1e-4


def test_held_out_rows_of_another_store_have_the_length_too(store):
    config = recipe.read_recipe("transformer_xl.py:tiny,length=8")
    fields = {"data.store": str(store), "data.heldout_store": str(store), "eval.length": 5}
    run = build(with_fields(config, SMALL | fields), one_device())
    (held, *_) = run.heldout["heldout"]()
    assert held["tokens"].shape[1] == 5 and run.batch(0)["tokens"].shape[1] == 8


def test_what_makes_other_parameters_is_refused(store):
    config = recipe.read_recipe("transformer_xl.py:tiny,length=8")
    config = with_fields(config, SMALL | {"data.store": str(store)})
    model = build(config, one_device()).model
    assert with_options(model, {}) is model
    for options in (dict(untie_r=True), dict(hidden_size=32), dict(num_layers=2), dict(scan=True)):
        with pytest.raises(FirthError, match="makes other parameters than were trained"):
            with_options(model, options)
    with pytest.raises(FirthError, match=r"has no field clamp; did you mean 'clamp_len'"):
        with_options(model, dict(clamp=3))
    config = with_fields(recipe.read_recipe("bert.py:tiny,length=32"), {"data.store": str(store)})
    with config.unlocked():
        config.eval.length = 600
    with pytest.raises(FirthError, match=r"eval.length=600 .*max_length=512"):
        build(config, one_device())


def test_a_workdir_of_before_goes_on_and_can_be_measured_by_them(tmp_path):
    """Its config has none of these fields, and nothing else of the recipe has changed for it."""
    config = recipe.read_recipe("transformer_xl.py:ptb,length=16")
    recorded.record(config, tmp_path)
    path = tmp_path / "config.json"
    old = json.loads(path.read_text())
    del old["eval"]["length"], old["eval"]["model"], old["model"]["init_stddev"]
    del old["mesh"]["zero1"], old["rollback"]
    path.write_text(json.dumps(old))
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    found = recipe.read(tmp_path)
    recorded.record(config, tmp_path)
    fields = {"eval.length": 4, "eval.model.clamp_len": 31, "eval.model.same_length": True}
    arguments = [f"--config.{name}={value}" for name, value in fields.items()]
    config, changed = recorded.remeasured(found, arguments)
    assert changed == fields
    assert config.eval.length == 4 and not config.mesh.zero1 and config.rollback.limit == 3
    assert config.eval.model.to_dict() == {"clamp_len": 31, "same_length": True}
    assert not config.model.same_length
    with pytest.raises(FirthError, match=r"not measured by 'eval.model.clamp'; did you mean"):
        recorded.remeasured(found, ["--config.eval.model.clamp=3"])
    task = recipe.read_recipe("finetune.py:task=rte,init=x")
    with pytest.raises(FirthError, match=r"not measured by .eval.length"):
        recorded.remeasured(task, ["--config.eval.length=3"])
    with pytest.raises(FirthError, match="holds a run of another config"):
        recorded.record(with_fields(found, {"model.init_stddev": 0.005}), tmp_path)
