"""Runs without their data: the shapes are those of the run, and what is assumed is said."""

import pytest
from helpers.runs import make_store

from firth import recipe
from firth.errors import FirthError
from firth.run import experiment
from firth.run.outline import outline
from firth.training.partition import create_mesh


@pytest.mark.parametrize(
    "name", ["bert.py:tiny,length=32", "roberta.py:tiny,length=32", "gpt2.py:tiny,length=32"]
)
def test_batches_have_the_shapes_of_the_run(name, tmp_path):
    config = recipe.read_recipe(name)
    config.batch_size = 8
    shapes = outline(config).batch
    config.data.store = str(make_store(tmp_path))
    batch = experiment.build(config, create_mesh(config.mesh)).batch(0)
    found = {name: (rows.shape, rows.dtype) for name, rows in batch.items()}
    assert {name: (shape.shape, shape.dtype) for name, shape in shapes.items()} == found


def test_a_distillation_without_a_teacher_is_taught_by_bert_base():
    outlined = outline(recipe.read_recipe("distilbert.py:base"))
    teacher = outlined.model.teacher.encoder.config
    assert (teacher.num_layers, teacher.hidden_size, teacher.intermediate_size) == (12, 768, 3072)
    assert any("BERT-base" in sentence for sentence in outlined.assumed)
    tiny = outline(recipe.read_recipe("distilbert.py:tiny"))
    assert any("a BERT of 2 layers, 128 wide, as teacher" in s for s in tiny.assumed)


def test_a_vocabulary_that_is_given_is_not_assumed():
    config = recipe.read_recipe("bert.py:tiny", ["--config.model.vocab_size=500"])
    outlined = outline(config)
    assert outlined.assumed == () and outlined.spec["vocab_size"] == 500


def test_fine_tuning_has_no_outline():
    with pytest.raises(FirthError, match="plan a pretraining recipe"):
        outline(recipe.read_recipe("finetune.py:task=rte,init=somewhere"))
