"""The figures that the ELECTRA paper prints, from its counting rule and from Firth's recipes."""

import dataclasses

import pytest

from firth import recipe
from firth.outline import outline
from firth.planning.electra_rule import (
    ELECTRA_SMALL,
    PRINTED,
    of_outline,
    printed,
    train_flops,
)


def digits(flops):
    return f"{flops:.1e}".replace("e+", "e")


@pytest.mark.parametrize("name", sorted(PRINTED.keys() - {ELECTRA_SMALL}))
def test_the_rule_gives_the_printed_figures(name):
    settings, figure = PRINTED[name]
    assert digits(train_flops(settings)) == figure


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


@pytest.mark.parametrize("name", ["xlnet.py:tiny", "modernbert.py:tiny", "distilbert.py:base"])
def test_what_the_rule_does_not_know_has_no_figure(name):
    assert of_outline(outline(recipe.read_recipe(name))) is None
