"""The model card: what a run knows of itself, in front matter that the hub's library reads."""

import json
import logging
import shutil
from pathlib import Path

import ml_collections
import pytest
from helpers.lines import STEP, make_run
from helpers.published.bert import make_bert
from huggingface_hub import ModelCard

from firth import cli
from firth.errors import FirthError
from firth.weights.card import amended, model_card, published_base
from firth.weights.read import read_model


@pytest.fixture(scope="module")
def made(store, tmp_path_factory):
    """A workdir with a checkpoint, and nothing measured."""
    workdir = tmp_path_factory.mktemp("card") / "run"
    make_run(workdir, store)
    return workdir


@pytest.fixture
def run(made, tmp_path):
    """The same with a journal, whose last line is of a later step than the published one."""
    shutil.copytree(made, tmp_path / "run")
    lines = [
        {"step": 1, "eval/heldout/mlm_loss": 9.0},
        {"step": STEP, "train/loss": 7.0, "eval/heldout/mlm_loss": 5.25},
        {"step": STEP + 2, "eval/heldout/mlm_loss": 4.0},
        {"step": STEP + 2, "eval/test/accuracy": 0.837},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    return tmp_path / "run"


def change(run: Path, **fields):
    """Change fields of the recorded config, by section__field."""
    config = json.loads((run / "config.json").read_text())
    for name, value in fields.items():
        section = config
        *path, last = name.split("__")
        for part in path:
            section = section[part]
        section[last] = value
    (run / "config.json").write_text(json.dumps(config))


def test_a_card_says_what_the_run_knows(run):
    """Metrics of the published step and of test sets, the data by name, fields, how to load it."""
    command = f"/opt/bin/firth train --config {run}/bert.py:tiny --workdir {run} --config.steps=9"
    (run / "env.txt").write_text(f"command: {command}\ntime: now\n")
    card = ModelCard(model_card(read_model(run), license="mit"))
    data = card.data.to_dict()
    assert data["library_name"] == "transformers" and data["license"] == "mit"
    assert data["pipeline_tag"] == "fill-mask" and data["tags"] == ["bert", "firth"]
    assert "base_model" not in data and "datasets" not in data
    found = {(r.dataset_split, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert found == {("heldout", "mlm_loss"): 5.25, ("test", "accuracy"): 0.837}
    assert {r.dataset_name for r in card.data.eval_results} == {"store"}
    text = card.content
    assert "| heldout/mlm_loss | 5.25 |" in text and f"Step {STEP} of the run." in text
    assert "    firth train --config bert.py:tiny --workdir run --config.steps=9\n" in text
    assert "Data: store." in text and "| schedule.lr | 0.0001 |" in text
    assert 'firth.load("this directory")' in text and "Licence: mit." in text
    assert "BertForPreTraining.from_pretrained(" in text
    assert str(run.parent) not in text, "a card names no folder of this machine"


def test_a_run_that_measured_nothing_has_a_card_too(made):
    card = ModelCard(model_card(read_model(made)))
    assert card.data.eval_results is None and card.data.license is None
    assert "Licence: not stated." in card.content and "## Results" not in card.content


def test_a_task_of_the_hub_is_named(run):
    change(run, data__task="sst2")
    card = ModelCard(model_card(read_model(run)))
    assert card.data.datasets == ["nyu-mll/glue"]
    first = card.data.eval_results[0]
    assert (first.dataset_type, first.dataset_config, first.dataset_name) == (
        *("nyu-mll/glue", "sst2"),
        "sst2",
    )


def test_a_model_of_no_run_has_a_card(tmp_path):
    make_bert(tmp_path / "bert", "BertForMaskedLM")
    card = ModelCard(model_card(read_model(tmp_path / "bert"), base_model="org/name"))
    assert card.data.base_model == "org/name" and "## Training" not in card.content
    assert "It started from [org/name](https://huggingface.co/org/name)." in card.content


def test_the_weights_at_the_beginning_are_found(run, made, tmp_path):
    """Through a run that began with another one's weights; a local directory has no name there."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        shutil.copytree(made, folder)
    for start, base in (
        ("hf:org/name@main", "org/name"),
        ("minilm", "sentence-transformers/all-MiniLM-L6-v2"),
        (str(tmp_path / "weights"), ""),
        (str(first), ""),
        ("", ""),
    ):
        change(first, init_from=start)
        change(second, init_from=str(first))
        assert published_base(ml_collections.ConfigDict({"init_from": str(second)})) == base
    change(run, init_from="hf:org/name")
    assert ModelCard(model_card(read_model(run))).data.base_model == "org/name"


def test_convert_writes_it_and_keeps_what_a_model_says(run, tmp_path):
    def convert(source, target, *more):
        assert (
            cli.main(["convert", "--from", f"{source}", "--to", f"{tmp_path / target}", *more]) == 0
        )
        return ModelCard((tmp_path / target / "README.md").read_text())

    card = convert(run, "one", "--license=apache-2.0", "--base-model=org/name")
    assert (card.data.license, card.data.base_model) == ("apache-2.0", "org/name")
    own = "---\nlicense: mit\nlanguage: en\n---\n\n# Mine\n"
    (run / "README.md").write_text(own)
    assert convert(run, "two").data.license == "mit"
    assert (tmp_path / "two" / "README.md").read_text() == own
    card = convert(run, "three", "--base-model=org/name")
    assert card.data.to_dict() == {"license": "mit", "language": "en", "base_model": "org/name"}
    assert card.text.strip() == "# Mine"


def test_front_matter_that_is_no_yaml_is_refused():
    with pytest.raises(FirthError, match="its front matter cannot be read"):
        amended("---\nlicense: [\n---\n\n# Mine\n", license="mit")


def test_reading_a_workdir_says_nothing_of_orbax(made, caplog):
    """Its warnings are of files that a run's checkpoint need not have."""
    caplog.set_level(logging.WARNING, "absl")
    assert read_model(made).step == STEP
    assert not [record for record in caplog.records if record.name == "absl"]
    assert logging.getLogger("absl").level == logging.WARNING
