"""The comparison of experiments/every_family: the same recipe for all, and a table."""

import json
from pathlib import Path

import pytest
from helpers.published.bert import add_tokenizer, make_bert
from helpers.scripts import load_script

import firth
from firth import recipe


@pytest.fixture(scope="module")
def script():
    return load_script("every_family")


def test_every_task_has_a_recipe(script):
    for task in script.TASKS:
        argument, fields = script.recipe_of(Path("d"), task, Path("runs/full-bert-tiny"))
        assert argument.endswith("init=runs/full-bert-tiny")
        fields = {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
        config = recipe.with_fields(recipe.read_recipe(argument), fields)
        assert config.schedule.lr == 5e-4
    assert config.data.train == "d/ud_english_ewt/en_ewt-ud-train.conllu"


def test_a_random_body_has_the_shape_of_the_trained_one_and_other_weights(script, tmp_path):
    make_bert(tmp_path / "init", "BertForPreTraining", vocab_size=72, num_hidden_layers=1)
    add_tokenizer(tmp_path / "init")
    folder = script.random_body(tmp_path / "init", tmp_path / "random")
    trained, random = (firth.load(path).encode(["the cat"]) for path in (tmp_path / "init", folder))
    assert trained.shape == random.shape and abs(trained - random).max() > 1e-3


def test_the_table_has_a_row_a_family_and_the_constant_answer(script, tmp_path, capsys):
    lines = [
        {
            "family": "gpt",
            "task": "pos",
            "body": body,
            "seed": seed,
            "accuracy": a,
            "constant": 86.2,
        }
        for body, seed, a in (("pretrained", 0, 90.0), ("pretrained", 1, 92.0), ("random", 0, 80.0))
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert script.main(["--table", f"--results={path}"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[2] == "| gpt |  |  | 80.0 | 91.0 ± 1.4 | 2 |"
    assert rows[3] == "| constant answer |  |  | 86.2 | 86.2 | |"
