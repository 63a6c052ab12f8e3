"""Document context from training to prediction: the same rows, whatever is read at a time."""

import json

import jax
import numpy as np
import pytest
from helpers.interrupts import stopping

from firth import recipe
from firth.cli import main
from firth.data.tagging.files import read_sentences
from firth.errors import FirthError
from firth.inference.tagging.tagger import Tagger
from firth.run import experiment
from firth.training.partition import create_mesh

TEXT = "".join(
    f"-DOCSTART- O\n\nthe {a}\ncats {b}\n\nwalked O\none {a}\n\nred {b}\nthe O\n\n"
    for a, b in (("B-X", "I-X"), ("O", "B-Y"), ("B-Y", "O"))
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "a.bio"
    path.write_text(TEXT)
    return path


def test_a_trained_tagger_predicts_in_document_context(encoder, tmp_path, capsys, monkeypatch):
    """From the columns that it was trained on, or the only one."""
    run, path = tmp_path / "run", tmp_path / "numbered.bio"
    path.write_text("".join(f"7 {line}\n" if line else "\n" for line in TEXT.splitlines()))
    argv = [f"--config=tagger.py:init={encoder},crf=true,context=document,length=16"]
    argv += [f"--config.data.{split}={path}" for split in ("train", "dev", "test")]
    argv += ["--config.steps=3", "--config.batch_size=8", "--config.eval.batch_size=8"]
    argv += ["--config.data.text=1", "--config.data.label=2"]
    assert main(["train", *argv, f"--workdir={run}", "--config.schedule.lr=0.01"]) == 0
    tagger, sentences = Tagger(str(run)), read_sentences(path, "1", "2")
    whole = tagger(sentences)
    written = (run / "predictions/test.tsv").read_text().split()
    assert written == [tag for one in whole for tag in one]
    monkeypatch.setattr("firth.inference.tagging.tagger.WINDOW", 2)
    windows = list(tagger.windows(sentences))
    assert [begin for begin, _ in windows] == [0, 3, 6]  # up to where a document ends
    assert [one for _, tags in windows for one in tags] == whole
    scores = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    capsys.readouterr()
    assert main(["evaluate", f"--model={run}", f"--data={path}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["accuracy"] == pytest.approx(scores["eval/test/accuracy"])
    (tmp_path / "words.bio").write_text("the\ncats\n")
    for name, count in (("numbered", len(sentences.words)), ("words", 2)):
        predict = ["predict", f"--model={run}", f"--input={tmp_path}/{name}.bio", "--batch-size=3"]
        assert main([*predict, f"--output={tmp_path}/{name}.tsv"]) == 0
        lines = (tmp_path / f"{name}.tsv").read_text().split("\n")
        assert [line.split("\t")[0] for line in lines if line] == sentences.words[:count]
    again = ["predict", f"--model={run}", f"--input={path}", "--batch-size=3", "--output"]
    with stopping(Tagger, "__call__", after=2):
        assert main([*again, f"{tmp_path}/again.tsv"]) == 130
    assert (tmp_path / "again.tsv.partial").read_text() in (tmp_path / "numbered.tsv").read_text()
    assert main([*again[:3], "--batch-size=2", "--output", f"{tmp_path}/again.tsv"]) == 2
    text = path.read_text()
    path.write_text(text.replace("cats", "dogs", 1))
    assert main([*again, f"{tmp_path}/again.tsv"]) == 2
    assert "holds 6 rows of another input" in capsys.readouterr().err
    path.write_text(text)
    with stopping(Tagger, "__call__", after=1):  # all that is left
        assert main([*again, f"{tmp_path}/again.tsv"]) == 0
    assert (tmp_path / "again.tsv").read_bytes() == (tmp_path / "numbered.tsv").read_bytes()


def built(path, name, **changes):
    fields = {"data.train": str(path), "data.dev": str(path), "mesh.data": 1, "batch_size": 2}
    fields |= {"eval.batch_size": 2, "data.length": 16} | changes
    config = recipe.with_fields(recipe.read_recipe(name), fields)
    return experiment.build(config, create_mesh(config.mesh, jax.devices()[:1]))


def test_a_run_reads_rows_of_documents_and_scores_every_word(encoder, path):
    run = built(path, f"tagger.py:init={encoder},context=document", **{"data.stride": 2})
    columns = [batch | {"tags": batch["labels"]} for batch in run.heldout["dev"]()]
    for batch in columns:
        assert batch["mask"].sum() > batch["word_mask"].sum()
        assert batch["begins"].any()
    scores, tags = run.scorers["dev"](columns)
    assert scores == dict.fromkeys(run.task.metrics, 1.0)
    assert [len(one) for one in tags] == [2] * 9
    plain = built(path, f"tagger.py:init={encoder}")
    assert "begins" not in plain.batch(0)
    assert np.unique(plain.batch(0)["word_mask"].sum(1)).tolist() == [2]


def test_a_tagger_of_words_has_no_context_of_its_own(path):
    with pytest.raises(FirthError, match=r"data\.context=document: the tagger reads sentences"):
        built(path, "tagger.py:tiny", **{"data.context": "document"})
