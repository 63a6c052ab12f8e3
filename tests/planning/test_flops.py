"""The closed formulas against the program: its jaxpr to the last product, and XLA's own count."""

import dataclasses
import math

import jax
import pytest
from helpers.cases import nightly, with_each_change
from jax.extend.core import Literal

from firth import recipe, registry
from firth.models import FAMILIES
from firth.models.model import family
from firth.objectives import OBJECTIVES
from firth.objectives.objective import Objective
from firth.planning import flops
from firth.planning.memory import laid_out
from firth.run.outline import outline
from firth.run.program import lay_out
from firth.training.partition import create_mesh


def outlined(name, **changes):
    """A recipe with a small vocabulary and batch; `a__b` is field a.b."""
    fields = dict(model__vocab_size=600, batch_size=4, accumulate=1) | changes
    fields = {path.replace("__", "."): value for path, value in fields.items()}
    return outline(recipe.with_fields(recipe.read_recipe(name), fields))


def products_in(jaxpr, live=None) -> int:
    """FLOPs of the matrix products that the live results of a jaxpr hang on."""
    flags = [True] * len(jaxpr.outvars) if live is None else live
    wanted = {id(v) for v, is_live in zip(jaxpr.outvars, flags, strict=True) if is_live}
    total = 0
    for eqn in reversed(jaxpr.eqns):
        live = [id(v) in wanted for v in eqn.outvars]
        if not any(live):
            continue
        wanted |= {id(v) for v in eqn.invars if not isinstance(v, Literal)}
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            depth = math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
            total += 2 * depth * eqn.outvars[0].aval.size
        counts = []
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                inner = getattr(inner, "jaxpr", inner)
                same = eqn.primitive.name != "scan" and len(inner.outvars) == len(live)
                counts.append(products_in(inner, live if same else None))
        if eqn.primitive.name == "cond":  # a way for each platform: one of them is taken
            assert len(set(counts)) == 1
            counts = counts[:1]
        total += sum(counts) * eqn.params.get("length", 1)
    return total


def is_jaxpr(value) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


BODIES = [
    nightly("bert.py:tiny", {}),
    ("bert.py:tiny,view=packed", dict(accumulate=2)),
    ("bert.py:tiny", dict(model__scan=True)),
    nightly("roberta.py:tiny,length=128", {}),
    ("albert.py:tiny,length=128", dict(model__inner_layers=2, model__embedding_size=96)),
    nightly("distilbert.py:tiny,length=128", {}),
    ("distilbert.py:tiny,length=128", dict(objective__masked_only=True)),
    ("electra.py:tiny", dict(objective__sharing="none", objective__width=0.5)),
    nightly("electra.py:tiny,variant=all_tokens,sharing=embeddings", {}),
    ("electra.py:tiny,variant=replace_mlm,sharing=embeddings", {}),
    ("modernbert.py:tiny,length=128,objective=rtd", {}),
    nightly("xlnet.py:tiny,length=96,memory=0", {}),
    ("xlnet.py:tiny,length=96", dict(model__scan=True, accumulate=2)),
    ("transformer_xl.py:tiny", {}),
    nightly("gpt.py:tiny,length=128", {}),
    ("gpt2.py:tiny,length=128", {}),
    ("lstm.py:tiny", dict(accumulate=2)),
    ("lstm.py:medium", dict(model__embedding_size=96, model__tied_softmax=True)),
    nightly("rnn.py:tiny", {}),
    ("awd_lstm.py:tiny", {}),
    ("rhn.py:tiny", {}),
    nightly("char_cnn_lstm.py:tiny", {}),
    ("char_cnn_lstm.py:tiny", dict(model__vocab_size=60, accumulate=2)),
    nightly("feedforward.py:tiny", {}),
    ("feedforward.py:tiny,kind=direct", {}),
]


@pytest.mark.parametrize(("name", "changes"), BODIES)
def test_the_formula_is_every_matrix_product_of_the_step(name, changes):
    outlines = outlined(name, **changes)
    program = laid_out(outlines, 1)
    step = jax.make_jaxpr(program.step)(program.state, outlines.batch)
    assert products_in(step.jaxpr) == sum(flops.update_flops(outlines).values())


AGAIN = [
    ("bert.py:tiny", "all_dots"),
    ("bert.py:tiny", "dots"),
    ("albert.py:tiny,length=128", "full"),
    ("gpt2.py:tiny,length=128", "full"),
]


@pytest.mark.parametrize(("name", "remat"), AGAIN)
def test_what_rematerialisation_computes_again(name, remat):
    outlines = outlined(name, model__remat=remat)
    program = laid_out(outlines, 1)
    step = jax.make_jaxpr(program.step)(program.state, outlines.batch)
    expected = sum(flops.update_flops(outlines).values()) + flops.recomputed(outlines)
    assert products_in(step.jaxpr) == expected
    assert (flops.recomputed(outlines) > 0) == (remat != "all_dots")


def compiled_count(outlines) -> float:
    """XLA's count of the compiled step: element-wise operations are in it, loops once."""
    mesh = create_mesh(None, jax.devices()[:1])
    config = outlines.config
    program = lay_out(outlines.model, outlines.objective, config, outlines.steps, mesh)
    lowered = program.step.lower(program.state, outlines.batch)
    return lowered.compile().cost_analysis()["flops"]


NO_DROPOUT = dict(
    model__scan=False, model__dropout=0.0, model__attention_dropout=0.0, model__num_layers=2
)
LONG = (
    *("bert.py:tiny", "roberta.py:tiny,length=128", "albert.py:tiny,length=128"),
    *(
        "distilbert.py:tiny,length=128",
        "electra.py:tiny,sharing=embeddings",
        "modernbert.py:tiny,length=128",
    ),
    *("xlnet.py:tiny,length=128", "transformer_xl.py:tiny", "gpt2.py:tiny,length=128"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_each_change(LONG[4:7:2], LONG))
def test_xla_counts_a_few_percent_more(name):
    """Random bits of dropout would be most of the rest, so there are none."""
    outlines = outlined(name, batch_size=16, **NO_DROPOUT)
    ratio = compiled_count(outlines) / sum(flops.update_flops(outlines).values())
    assert 1.0 <= ratio < 1.08


def test_a_generator_that_is_trained_no_more_has_no_backward_pass():
    outlines = outlined("electra.py:tiny,sharing=none")
    frozen = dataclasses.replace(
        outlines, objective=dataclasses.replace(outlines.objective, trained=object())
    )
    trained, still = flops.update_flops(outlines), flops.update_flops(frozen)
    for part, count in trained.items():
        assert still[part] * (3 if part.startswith("generator") else 1) == count


def test_attention_of_modernbert_by_its_reach():
    """Of 22 layers the 1st, 4th, ... 22nd see everything; the others compute as much."""
    parts = flops.update_flops(outlined("modernbert.py:base,length=128", model__scan=True))
    assert parts["attention products"] * 14 == parts["local attention products"] * 8
    assert parts["attention products"] == 8 * 3 * 2 * 2 * 128**2 * 768 * 4


def test_the_last_layer_of_modernbert_is_local_or_global():
    """At 20 of 128 places it saves 84 % of its own kind alone."""
    for layers, part in ((2, "local attention products"), (4, "attention products")):
        fields = dict(model__num_layers=layers, objective__max_predictions=20)
        few = flops.update_flops(outlined("modernbert.py:tiny,length=128", **fields))
        whole = outlined("modernbert.py:tiny,length=128", model__scan=True, **fields)
        saved = {name: count - few[name] for name, count in flops.update_flops(whole).items()}
        other = {"local attention products", "attention products"} - {part}
        assert saved[part] == 3 * 2 * 2 * 4 * 108 * 128 * 128 and not saved[other.pop()]


def test_every_family_and_every_pretraining_objective_has_a_formula():
    for name in FAMILIES.keys() - {"tagger"}:  # which learns labels
        assert callable(family(name).Config.products)
    for name in OBJECTIVES.keys() - {"finetune", "tag", "answer", "multitask"}:
        found = registry.resolve("objective.name", name, OBJECTIVES)
        assert found.products is not Objective.products


def test_six_flops_a_parameter_and_token():
    """The common estimate, for a body whose layers are nearly all of it."""
    changes = dict(model__vocab_size=30522, model__scan=True, batch_size=8)
    outlines = outlined("bert.py:large,length=512", **changes)
    parts = flops.update_flops(outlines)
    layers = 24 * (4 * 1024**2 + 8 * 1024**2)
    assert parts["attention projections"] + parts["MLP"] == 6 * layers * 8 * 512
