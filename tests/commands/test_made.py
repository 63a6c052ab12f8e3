"""What commands leave for the next one: a vocabulary's size, and a tokenizer that can truncate."""

import json

import pytest
from helpers.lines import BODY, make_places

from firth.cli import main
from firth.run.bounds import say_what_stays

TEXT = "the river bank .\nthe dog sat .\n\nthe cat sat on the mat .\n"


def test_a_vocabulary_that_the_text_does_not_fill(tmp_path, monkeypatch, capsys):
    """It is said, and the same command goes on with it; another size is refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    line = "prepare --input a.txt --tokenizer tok --train-tokenizer wordpiece --workers 1"
    assert main([*line.split(), "--output=s", "--vocab-size=900"]) == 0
    said = capsys.readouterr().err
    size = json.loads((tmp_path / "s" / "manifest.json").read_text())["tokenizer"]["vocab_size"]
    assert size < 900 and f"the text gave a vocabulary of {size} tokens, not all of 900" in said
    assert main([*line.split(), "--output=s", "--vocab-size=900", "--overwrite"]) == 0
    capsys.readouterr()
    assert main([*line.split(), "--output=t", "--vocab-size=901"]) == 2
    assert f"tok holds a tokenizer of {size} tokens, not 901" in capsys.readouterr().err
    assert main([*line.split(), "--output=t", f"--vocab-size={size}"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "s", "t", "tok"]


def test_transformers_truncates_with_a_converted_tokenizer(store, tmp_path):
    """Without `model_max_length` it would fail for want of a limit."""
    from transformers import AutoTokenizer

    places = make_places(tmp_path, store)
    tokenizer = AutoTokenizer.from_pretrained(places["published"])
    ids = tokenizer("the river bank " * 60, truncation=True)["input_ids"]
    assert tokenizer.model_max_length == len(ids) == BODY["max_length"]


@pytest.mark.parametrize(("every", "keep", "said"), [(2, 2, True), (0, 1, False), (9, 2, False)])
def test_a_run_says_which_checkpoints_stay(every, keep, said, caplog):
    from ml_collections import ConfigDict

    with caplog.at_level("INFO", "firth"):
        say_what_stays(ConfigDict({"every": every, "keep": keep}), 10)
    assert ("every=2 keeps 5 checkpoints for good" in caplog.text) == said
