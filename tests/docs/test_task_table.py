"""The table of experiments/tasks: every run has a recipe; the table shows what the runs got."""

import argparse
import json
import lzma
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.published.bert import WORDS, add_tokenizer, make_bert
from helpers.scripts import load_script

import firth
from firth import recipe
from firth.display.published import published


@pytest.fixture(scope="module")
def script():
    return load_script("tasks")


@pytest.fixture
def args(tmp_path):
    return argparse.Namespace(
        data=Path("d"),
        workdir=tmp_path,
        init="minilm",
        dtype="bfloat16",
        results=tmp_path / "results.jsonl",
    )


def test_every_run_has_a_recipe(script, args):
    """The encoder is trained when it is fine-tuned, and nothing but a head when it is frozen."""
    for name in script.TASKS:
        for way in script.WAYS:
            argument, fields = script.recipe_of(args, name, way, 3)
            assert not any("{" in str(value) for value in fields.values()), name
            fields = {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
            config = recipe.with_fields(recipe.read_recipe(argument), fields)
            assert config.batch_size % config.accumulate == 0, name
            frozen = config.model.get("features") or config.optimizer.freeze
            assert bool(frozen) == (way == "frozen"), name
            tuned = 5e-5 if name == "sst2" else 1e-4
            assert config.schedule.lr == {"tuned": tuned}.get(way, config.schedule.lr)
    epochs = [script.recipe_of(args, "sst2", way, 0)[1]["epochs"] for way in script.WAYS]
    assert epochs == [5.0, 2.0]
    assert script.recipe_of(args, "codah", "tuned", 3)[1]["data.dir"] == "d/codah/fold_3"
    assert (
        recipe.read_recipe(script.recipe_of(args, "ner", "tuned", 0)[0]).data.context == "document"
    )
    sentence = recipe.read_recipe(script.recipe_of(args, "ner_sentence", "tuned", 0)[0])
    assert sentence.data.context == "sentence"


def test_what_is_measured_is_read_and_not_measured_again(script, args, tmp_path, capsys):
    """Means, deviations, the constant answer and published figures, a row a split and metric."""
    lines = [
        {"task": "mrpc", "way": "tuned", "seed": seed, "init": "minilm",
         "dev": {"f1": 80.0 + 2 * seed, "accuracy": 70.0},
         "dev_baseline": {"f1": 81.2, "accuracy": 68.4}}
        for seed in (0, 1)
    ]  # fmt: skip
    lines += [
        {"task": "rte", "way": "frozen", "seed": 0, "init": "minilm", "dev": {"accuracy": 5.0}}
    ]
    args.results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    script.measure(args, "mrpc", "tuned", 1)  # would need files and a process
    assert script.main(["--table", f"--results={args.results}"]) == 0
    rows = capsys.readouterr().out.splitlines()
    sanh = "Sanh et al. 2019: BERT-base 88.6, DistilBERT 87.5"
    assert f"| mrpc | f1 | dev | 81.2 |  | 81.0 ± 1.4 | 2 | {sanh} |" in rows
    assert "| mrpc | accuracy | dev | 68.4 |  | 70.0 ± 0.0 | 2 |  |" in rows
    assert rows[2].startswith("| rte | accuracy | dev |  | 5.0 |  | 1 |")  # in the suite's order
    assert (tmp_path / "frozen.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_every_seed_of_the_first_metric_of_test_or_else_of_dev(script, tmp_path):
    """What it draws: a row a task in the suite's order, frozen, fine-tuned and constant."""
    lines = [
        {"task": "ner", "way": way, "dev": {"entity_f1": 9.0}, "dev_baseline": {"entity_f1": 1.0},
         "test": {"entity_f1": value, "accuracy": 99.0}, "test_baseline": {"entity_f1": 2.0}}
        for way, value in (("tuned", 7.0), ("tuned", 8.0), ("frozen", 6.0))
    ]  # fmt: skip
    lines += [{"task": "mrpc", "way": "tuned", "dev": {"f1": 80.0, "accuracy": 70.0}}]
    rows = sys.modules["drawing"].points(lines)
    assert list(rows.items()) == [
        ("mrpc, f1, dev", {"tuned": [80.0]}),
        ("ner, entity f1, test", {"tuned": [7.0, 8.0], "constant": [2.0], "frozen": [6.0]}),
    ]


def test_a_finished_run_is_read_in_points_beside_its_baseline(script, args, capsys):
    """The best checkpoint's metrics of the task alone; checkpoints go, the line stays."""
    folder = args.workdir / "ner-tuned-2"
    (folder / "seed-2" / "checkpoints").mkdir(parents=True)
    summary = {"test/entity_f1": {"mean": 0.8123456}, "test/tag_loss": {"mean": 0.3}}
    (folder / "summary.json").write_text(json.dumps(summary))
    baselines = {"dev": {"recall": 0.1}, "test": {"entity_f1": 0.25, "entity_recall": 0.3}}
    (folder / "seed-2" / "baselines.json").write_text(json.dumps(baselines))
    script.measure(args, "ner", "tuned", 2)
    (line,) = script.read_results(args.results)
    assert line == json.loads(capsys.readouterr().out) and line.pop("seconds") < 60
    assert line == {
        **{"task": "ner", "way": "tuned", "seed": 2, "init": "minilm"},
        **{"dtype": "bfloat16", "test": {"entity_f1": 81.23}, "test_baseline": {"entity_f1": 25.0}},
    }
    assert not (folder / "seed-2" / "checkpoints").exists()


def test_long_texts_are_also_read_whole(script, args):
    """As `predict` reads them: the mean over windows, for what a cut text leaves out, too."""
    model, args.data, args.dtype = args.workdir / "imdb-tuned-0/seed-0", args.workdir, "float32"
    names = {0: "0", 1: "1"}
    kinds = dict(id2label=names, label2id={name: label for label, name in names.items()})
    theirs = make_bert(
        model, "BertForSequenceClassification", vocab_size=len(WORDS), num_labels=2, **kinds
    )
    add_tokenizer(model)
    (model.parent / "summary.json").write_text('{"test/accuracy": {"mean": 0.5}}')
    drawn = np.random.default_rng(0).choice(["cat", "dog", "ran", "the", "fish"], (24, 90))
    texts = [" ".join(words) for words in drawn]
    said = firth.load(model).predict(texts, long="average", stride=256)
    odds = [np.log(one.probabilities["1"] / one.probabilities["0"]) for one in said]
    theirs.classifier.bias.data[1] -= float(np.median(odds))  # so that it says each of half
    theirs.save_pretrained(model)
    encoder = firth.load(model)
    whole = [one.label for one in encoder.predict(texts, long="average", stride=256)]
    assert whole != [one.label for one in encoder.predict(texts)]
    lines = [json.dumps({"text": t, "label": label}) for t, label in zip(texts, whole, strict=True)]
    (args.data / "imdb").mkdir()
    (args.data / "imdb/test.jsonl.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    script.measure(args, "imdb", "tuned", 0)
    (line,) = script.read_results(args.results)
    assert line["whole"] == {"accuracy": 100.0} and line["test"] == {"accuracy": 50.0}


def test_what_else_is_measured_of_a_run_has_its_checkpoints(script, tmp_path):
    (tmp_path / "seed-2" / "checkpoints").mkdir(parents=True)
    (tmp_path / "summary.json").write_text("{}")
    also = lambda workdir: {"whole": {"there": (workdir / "checkpoints").exists()}}  # noqa: E731
    assert script.fine_tune("", {}, tmp_path, 2, also) == {"whole": {"there": True}}
    assert not (tmp_path / "seed-2" / "checkpoints").exists()


def test_files_are_made_without_a_text_in_two_splits(script, tmp_path, shared_data):
    """Brown: 500 texts, a tenth each for dev and test, no marks left. XQuAD: 48 articles."""
    script.make_files(shared_data("nltk/brown.zip").parents[1], tmp_path)
    words = {}
    for split in ("train", "dev", "test"):
        text = (tmp_path / f"brown-{split}.tsv").read_text()
        words[split] = [line.split("\t") for line in text.splitlines() if line]
    assert sum(map(len, words.values())) == 1_161_192
    assert 0.09 < len(words["test"]) / 1_161_192 < 0.11
    tags = {tag for own in words.values() for _, tag in own}
    assert not any(tag.endswith(("-hl", "-tl", "-nc")) for tag in tags) and "fw-in" in tags
    contexts = {}
    for split in ("train", "dev", "test"):
        articles = json.loads((tmp_path / f"xquad-{split}.json").read_text())["data"]
        contexts[split] = {p["context"] for article in articles for p in article["paragraphs"]}
    assert not contexts["test"] & (contexts["train"] | contexts["dev"])
    assert not contexts["train"] & contexts["dev"]
    assert (tmp_path / "chunks-test.conll").read_text().startswith("Rockwell NNP B-NP")


def test_published_figures_are_those_of_reports(script):
    """Of GLUE's tasks both name the same ones."""
    for name in ("rte", "wnli", "mrpc", "stsb", "cola", "sst2"):
        (said,) = script.TASKS[name].published.values()
        known = {round(100 * one.value, 1) for one in published(name, "dev")}
        assert {float(number) for number in re.findall(r"\d\d\.\d", said)} <= known
