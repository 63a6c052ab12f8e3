"""The comparison of experiments/frozen: every run has a recipe; tables show what runs got."""

import argparse
import json
from pathlib import Path

import pytest
from helpers.scripts import load_script

from firth import recipe


@pytest.fixture(scope="module")
def script():
    return load_script("frozen")


@pytest.fixture
def args(script, tmp_path):
    return argparse.Namespace(
        data=tmp_path, workdir=tmp_path / "runs", init="minilm", seeds="0,1", context="document",
        parts=script.PARTS, epochs=8.0,
    )  # fmt: skip


def test_every_run_has_a_recipe(script, args):
    runs = script.plan(args, 6)
    assert len(runs) == 6 + 7
    for run in runs:
        fields = run.fields | {"seeds": args.seeds}
        config = recipe.with_fields(
            recipe.read_recipe(run.recipe),
            {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()},
        )
        assert config.model.features == "minilm" and config.model.embedding_size == 0
        assert config.model.feature_layers == run.layers
    args.parts = ["layers"]
    assert [run.name for run in script.plan(args, 1)] == ["ner-features-0", "ner-features-1"]


def test_tables_and_figure_of_finished_runs(script, args, tmp_path):
    """Finished runs are read, not trained."""
    rows = []
    for number, run in enumerate(script.plan(args, 2)):
        folder = args.workdir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        f1 = {"mean": 0.5 + number / 100, "std": 0.004, "values": {"0": 0.5, "1": 0.6}}
        summary = {"dev/entity_f1": f1}
        (folder / "summary.json").write_text(json.dumps(summary))
        rows.append({"part": run.part, "layers": run.layers} | script.scores(run, args))
    assert not script.finished(folder / "summary.json", "0,1,2")  # another seed is trained
    text = script.tables(rows)
    assert "| last | 52.0 ± 0.4 |  | 94.9 |" in text
    assert "| 1 | 57.0 ± 0.4 |  |  |" in text
    script.figure(rows, tmp_path / "layers.png")
    assert (tmp_path / "layers.png").stat().st_size > 5000
    with pytest.raises(argparse.ArgumentTypeError, match="'x' is none of choices, layers"):
        script.some_of(script.PARTS)("layers,x")
