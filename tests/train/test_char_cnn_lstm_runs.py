"""Whole runs of the character-aware model: in parts, evaluated, scored, generated from, planned."""

import json

import numpy as np
import pytest
from helpers.runs import WORDS, assert_same_bytes

import firth
from firth.cli import main

STEPS = 24


def prepare(folder, name, words, *more):
    """A store of random sentences over some words."""
    rng = np.random.default_rng(len(name))
    lines = (" ".join(rng.choice(words, rng.integers(3, 8))) for _ in range(60))
    (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    given = (f"--input={folder / name}.txt", f"--tokenizer={folder / 'words'}", "--workers=1")
    given += ("--sentences=line", f"--output={folder / name}")
    assert main(["prepare", *given, *more]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stores of a text and of a held-out one with a word that the vocabulary lacks."""
    folder = tmp_path_factory.mktemp("kim")
    prepare(folder, "train", WORDS[:20], "--train-tokenizer=word")
    prepare(folder, "held", [*WORDS[:20], "unheard"])
    return folder


def command(folder, workdir, **more):
    fields = {"data.store": folder / "train", "data.heldout_store": folder / "held"}
    fields |= {"steps": STEPS, "eval.every": 12, "batch_size": 8, "eval.batch_size": 8}
    fields |= {"model.hidden_size": 16, "model.filters_per_width": 3, "model.dropout": 0.1}
    fields |= {"curves": False, "progress": False, "data.loader": "thread"} | more
    recipe = "--config=char_cnn_lstm.py:tiny,length=8"
    return ["train", recipe, f"--workdir={workdir}", *(f"--config.{k}={fields[k]}" for k in fields)]


@pytest.fixture(scope="module")
def whole(folder):
    """A workdir trained in one go."""
    assert main(command(folder, folder / "whole")) == 0
    return folder / "whole"


def test_a_run_in_two_parts_ends_with_the_same_bytes(folder, whole, tmp_path):
    for until in (7, 0):
        assert main(command(folder, tmp_path / "parts", until=until)) == 0
    assert_same_bytes(whole, tmp_path / "parts", STEPS)


def test_it_is_evaluated_scored_and_generated_from(folder, whole, tmp_path, capsys):
    changes = ("--config.eval.batch_size=1", "--config.eval.batches=1000")
    assert main(["evaluate", f"--workdir={whole}", "--json", *changes]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["heldout/lm_perplexity"] < len(WORDS)
    assert "heldout/bits_per_character" not in measured  # a token is a word
    (tmp_path / "a.txt").write_text("the bank meaning\nunheard river\n")
    given = (
        f"--model={whole}",
        f"--input={tmp_path / 'a.txt'}",
        f"--output={tmp_path / 'a.jsonl'}",
    )
    assert main(["score", *given]) == 0
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    capsys.readouterr()
    assert main(["generate", f"--model={whole}", "--prompt=the bank", "--tokens=8"]) == 0
    words = capsys.readouterr().out.split()
    assert words[:2] == ["the", "bank"] and set(words) <= {*WORDS[:20], "<unk>", "<eos>"}


def test_its_words_stay_with_the_weights(whole):
    encoder = firth.load(whole)
    assert encoder.saved.spec["words"].split(" ") == encoder.tokenizer.vocab


def test_a_vocabulary_of_pieces_is_refused(folder, store, tmp_path, capsys):
    pieces = {"data.store": store, "data.heldout_store": store}
    assert main(command(folder, tmp_path / "run", **pieces)) == 2
    assert "the tokens of this wordpiece tokenizer are not words" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_it_is_planned_before_there_is_a_text(capsys):
    assert main(["plan", "--config=char_cnn_lstm.py:small", "--chips=h100"]) == 0
    assert "parameters" in capsys.readouterr().out
