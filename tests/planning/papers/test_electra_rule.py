"""The figures that the ELECTRA paper prints, from its counting rule and from Firth's recipes."""

import dataclasses

import pytest

from firth import recipe
from firth.planning.papers.electra_rule import (
    ELECTRA_SMALL,
    PRINTED,
    of_outline,
    printed,
    train_flops,
)
from firth.run.outline import outline


def digits(flops):
    return f"{flops:.1e}".replace("e+", "e")


@pytest.mark.parametrize("name", sorted(PRINTED.keys() - {ELECTRA_SMALL}))
def test_the_rule_gives_the_printed_figures(name):
    settings, figure = PRINTED[name]
    assert digits(train_flops(settings)) == figure


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("GPT", 3.968752230785352e19),
        ("BERT-Small", 1.4187399146496e18),
        (ELECTRA_SMALL, 1.293743798272e18),
        ("ELECTRA-Base", 6.424541834277683e19),
    ],
)
def test_the_rule_to_the_last_operation(name, flops):
    """As google-research/electra's flops_computation.py prints them, at commit 62e478a."""
    assert train_flops(PRINTED[name][0]) == pytest.approx(flops, rel=1e-12)


def test_electra_small_needs_a_generator_of_half_its_width():
    settings, figure = PRINTED[ELECTRA_SMALL]
    assert digits(train_flops(settings)) == "1.3e18"  # so does the released script
    assert digits(train_flops(dataclasses.replace(settings, generator=(128, 12)))) == figure


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("bert.py:base,length=512", {}, "BERT-Base"),
        ("bert.py:large,length=512", {}, "BERT-Large"),
        ("electra.py:small", {}, ELECTRA_SMALL),
        ("electra.py:base", {}, "ELECTRA-Base"),
        ("electra.py:large", {}, "ELECTRA-400K"),
        ("roberta.py:large", {"batch_size": 8000}, "RoBERTa-500K"),
        ("electra.py:base", {"steps": 1_000_000}, None),
        ("bert.py:base", {}, None),  # length 128
    ],
)
def test_recipes_with_the_settings_of_the_paper_are_recognised(name, changes, expected):
    config = recipe.read_recipe(name)
    config.update(changes)
    found = printed(of_outline(outline(config)))
    assert (found and found[0]) == expected


def test_a_causal_model_predicts_every_word():
    assert of_outline(outline(recipe.read_recipe("gpt.py:tiny"))).predicted == 1
    assert of_outline(outline(recipe.read_recipe("bert.py:tiny"))).predicted == 0.15625


def test_the_rule_knows_one_width_of_the_mlp():
    wider = recipe.read_recipe("bert.py:tiny", ["--config.model.intermediate_size=640"])
    assert of_outline(outline(wider)) is None


@pytest.mark.parametrize("name", ["xlnet.py:tiny", "modernbert.py:tiny", "distilbert.py:base"])
def test_what_the_rule_does_not_know_has_no_figure(name):
    assert of_outline(outline(recipe.read_recipe(name))) is None
