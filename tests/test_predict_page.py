"""docs/predict.md: its commands and its Python run, in its order, on a small model and files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.published.bert import WORDS, add_tokenizer, make_bert

PAGE = Path(__file__).parents[1] / "docs" / "predict.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BY_NAME = 'firth() { "$PYTHON" -m firth "$@"; }\n'


@pytest.mark.slow
def test_every_block_runs(torch, tmp_path):
    names = {0: "negative", 1: "positive"}
    classes = dict(id2label=names, label2id={name: i for i, name in names.items()})
    folder = tmp_path / "runs" / "snippets"
    make_bert(folder, "BertForSequenceClassification", vocab_size=len(WORDS), **classes)
    add_tokenizer(folder)
    (tmp_path / "test.csv").write_text("text,label\nthe cat sat,positive\na dog,negative\n")
    environment = os.environ | {"PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"}
    blocks = BLOCK.findall(PAGE.read_text())
    assert {kind for kind, _ in blocks} == {"python", "sh"} and len(blocks) >= 5
    for kind, text in blocks:
        program = (
            [sys.executable, "-c", text] if kind == "python" else ["sh", "-ec", BY_NAME + text]
        )
        done = subprocess.run(
            program, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (text, done.stderr)
    assert (tmp_path / "labelled.csv").read_text().startswith("id,text,label,p_negative,p_positive")
