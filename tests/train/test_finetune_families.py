"""Fine-tuning by the settings of a family's own paper: what is refused, said, and goes on."""

import json
import logging

import jax
import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert

from firth import recipe
from firth.data.tasks.load import get_task
from firth.errors import FirthError
from firth.models.model import family
from firth.recipe import with_fields
from firth.run import recorded
from firth.run.experiment import build, create_objective
from firth.training.optim import create_optimizer, create_schedule
from firth.training.partition import create_mesh

FAMILIES = ("bert", "roberta", "albert", "electra", "xlnet", "gpt", "distilbert")
GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_task_builds_with_the_settings_of_every_family(name):
    for task in GLUE:
        config = recipe.read_recipe(f"finetune.py:task={task},family={name}")
        body = {"family": name}
        objective = create_objective(config.objective, None, get_task(task), body=body)
        assert objective.special_counts == tuple(map(len, family(name).SPECIAL_TOKENS))
        assert objective.both_orders == (name == "gpt" and task in ("mrpc", "qqp", "stsb"))
        create_optimizer(config.optimizer)
        total = config.steps or 1000
        schedule = create_schedule(config.schedule, total)
        rates = schedule(np.arange(total + 1)) / config.schedule.lr
        assert 0.7 < rates.max() < 1 + 1e-6 and abs(rates[-1]) < 1e-6 and rates.min() >= 0


def test_a_family_or_size_without_settings_is_refused():
    with pytest.raises(FirthError, match=r"family='robert' is unknown; did you mean 'roberta'"):
        recipe.read_recipe("finetune.py:task=rte,family=robert")
    with pytest.raises(FirthError, match=r"size='tiny' is unknown; it knows base, large, small"):
        recipe.read_recipe("finetune.py:task=rte,family=electra,size=tiny")


def test_ones_own_length_goes_before_the_familys():
    lengths = [
        recipe.read_recipe(f"finetune.py:task=rte,family=roberta{more}").data.length
        for more in ("", ",length=64")
    ]
    assert lengths == [512, 64]


def test_settings_of_another_family_are_told(tmp_path, caplog):
    """Once, as a line of information; not where they fit, nor by a config of before."""
    make_bert(tmp_path / "weights")
    add_tokenizer(tmp_path / "weights")
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "a film,x\nthe bank,y\n" * 20)
    mesh = create_mesh(dict(data=1, fsdp=1, tensor=1), jax.devices()[:1])
    data = {f"data.{split}": str(tmp_path / f"{split}.csv") for split in ("train", "dev")}
    data |= {"data.text": "text", "data.label": "label", "data.length": 8}

    def told(name, **changes):
        caplog.clear()
        config = recipe.read_recipe(
            f"finetune.py:task=custom,init={tmp_path}/weights,family={name}"
        )
        config = with_fields(config, data)
        if changes.get("before"):
            with config.unlocked():
                del config.settings
        with caplog.at_level(logging.INFO, logger="firth"):
            build(config, mesh)
        return [line for line in caplog.messages if "settings" in line]

    assert not told("bert") and not told("roberta", before=True)
    (line,) = told("roberta")
    assert "weights are of family bert" in line and "roberta's paper" in line


def test_a_workdir_of_before_goes_on(tmp_path):
    """The settings' name is new in a config, their numbers are BERT's as ever."""
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    config = recipe.read_recipe("finetune.py:task=rte,init=weights")
    recorded.record(config, tmp_path)
    path = tmp_path / "config.json"
    old = json.loads(path.read_text())
    assert old.pop("settings") == "bert"
    path.write_text(json.dumps(old))
    recorded.record(config, tmp_path)
    other = recipe.read_recipe("finetune.py:task=rte,init=weights,family=roberta")
    with pytest.raises(FirthError, match="holds a run of another config"):
        recorded.record(other, tmp_path)
