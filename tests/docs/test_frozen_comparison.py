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
        tasks=[*script.TAGGED, *script.TEXTS], parts=script.PARTS, epochs=3.0, feature_epochs=8.0,
        rate=1e-4, frozen_rate=2e-3,
    )  # fmt: skip


def test_every_run_has_a_recipe(script, args):
    runs = script.plan(args, 6)
    assert len(runs) == 6 + 7 + 2 * 7
    for run in runs:
        fields = run.fields | {"seeds": args.seeds}
        config = recipe.with_fields(
            recipe.read_recipe(run.recipe),
            {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()},
        )
        frozen = config.model.get("features") or config.optimizer.freeze
        assert bool(frozen) == ("tuned" not in run.name)
    by_name = {run.name: recipe.read_recipe(run.recipe) for run in runs}
    assert by_name["ner-features-3"].model.feature_layers == "3"
    assert by_name["ner-tuned"].data.context == "document"
    args.parts, args.tasks = ["tasks"], ["rte"]
    assert [run.name for run in script.plan(args, 6)] == ["rte-frozen", "rte-tuned"]


def test_tables_and_figure_of_finished_runs(script, args, tmp_path):
    """Finished runs are read, not trained."""
    args.parts, args.tasks = ["choices", "layers", "tasks"], ["ner"]
    rows = []
    for number, run in enumerate(script.plan(args, 2)):
        folder = args.workdir / run.name
        folder.mkdir(parents=True, exist_ok=True)
        summary = {f"dev/{run.metric}": {"mean": 0.5 + number / 100, "std": 0.004}}
        (folder / "summary.json").write_text(json.dumps(summary))
        rows.append({"part": run.part, "task": run.task, "run": run.name, "metric": run.metric}
                    | script.scores(run, args))  # fmt: skip
    text = script.tables(rows)
    assert "| last | 52.0 ± 0.4 |  | 94.9 |" in text
    assert "| 1 | 57.0 ± 0.4 |  |  |" in text
    assert "| ner | entity_f1 | 59.0 ± 0.4 | 60.0 ± 0.4 |  |  |" in text
    script.figure(rows, tmp_path / "layers.png")
    assert (tmp_path / "layers.png").stat().st_size > 5000
    with pytest.raises(argparse.ArgumentTypeError, match="'x' is none of ner, pos"):
        script.some_of(("ner", "pos"))("ner,x")
