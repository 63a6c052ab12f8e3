"""The comparison of experiments/elmo_features: runs have recipes; a table shows what ended."""

import argparse
import json
from pathlib import Path

import pytest
from helpers.scripts import load_script

from firth import recipe


@pytest.fixture(scope="module")
def script():
    return load_script("elmo_features")


@pytest.fixture
def args(tmp_path):
    return argparse.Namespace(data=tmp_path, workdir=tmp_path / "runs", epochs=5.0, crf=False)


def with_fields(name: str, fields: dict):
    plain = {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
    return recipe.with_fields(recipe.read_recipe(name), plain)


def test_every_run_has_a_recipe(script, args):
    for name, fields in (
        ("elmo.py:tiny,tokens=9900000", script.ELMO),
        ("glove.py:dim=50", script.GLOVE),
        *((name, {}) for name in script.NGRAMS.values()),
    ):
        with_fields(name, fields)
    for task in script.TASKS:
        for variant, (with_glove, layers) in script.VARIANTS.items():
            config = with_fields(*script.tagger(args, task, variant))
            assert config.model.feature_layers == (layers or "last")
            assert bool(config.model.features) == bool(layers)
            assert bool(config.data.vectors) == with_glove
            assert config.model.embedding_size == 50 and config.model.filters


def test_results_are_gathered_from_all_calls(script, args):
    for task, variant, seed, dev in (
        ("pos", "random", 0, 0.9),
        ("ner", "elmo_mix", 1, 0.7),
        ("ner", "elmo_mix", 0, 0.8),
        ("ner", "random", 0, 0.5),
    ):
        folder = args.workdir / "taggers" / f"{task}-{variant}-{seed}"
        folder.mkdir(parents=True)
        line = dict(task=task, crf=False, variant=variant, epochs=5.0, metric="m", seed=seed)
        (folder / "line.json").write_text(json.dumps(line | {"dev": dev, "test": dev / 2}))
    (args.workdir / "taggers" / "pos-glove-0").mkdir()  # has not ended
    assert script.write_results(args.workdir).splitlines()[2:] == [
        "| ner, m | random | 5 | 50.0 | 25.0 | 0 |",
        "| ner, m | elmo_mix | 5 | 75.0 ± 7.1 | 37.5 ± 3.5 | 0, 1 |",
        "| pos, m | random | 5 | 90.0 | 45.0 | 0 |",
    ]
    lines = (args.workdir / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 0, 1, 0]
    assert (args.workdir / "results.md").read_text().startswith("| task |")
