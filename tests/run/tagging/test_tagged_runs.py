"""Runs of the tagger: they learn, go on after a stop, and their model tags files."""

import itertools
import json

import jax
import numpy as np
import pytest
from helpers.quick import jit

from firth import recipe
from firth.cli import main
from firth.data.tagging.files import read_sentences
from firth.errors import FirthError
from firth.models.model import bound
from firth.models.word_vectors import formats
from firth.objectives.objective import Sources
from firth.objectives.tag import Tag
from firth.run import experiment
from firth.training.partition import create_mesh

PEOPLE, TOWNS = ("Ann", "Bob", "Dan Ray", "Eve"), ("Oslo", "Rome", "New York")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with train.bio (IOB1), its text and word vectors."""
    folder, lines, texts = tmp_path_factory.mktemp("tagged"), [], []
    for person, town in itertools.product(PEOPLE, TOWNS):
        tagged = [(w, "I-PER") for w in person.split()]
        tagged += [("likes", "O"), *((w, "I-LOC") for w in town.split()), (".", "O")]
        lines += [f"{word} x {tag}" for word, tag in tagged] + [""]
        texts.append(" ".join(word for word, _ in tagged))
    (folder / "train.bio").write_text("\n".join(lines))
    (folder / "new.txt").write_text("\n".join(texts[:3]) + "\n")
    vectors = np.arange(12, dtype=np.float32).reshape(3, 4)
    formats.write(folder / "words.vec", ["Oslo", "likes", "paris"], vectors)
    return folder


def config_of(files, name="tagger.py:tiny,crf=true,length=8", **changes):
    fields = {"data.train": str(files / "train.bio"), "data.dev": str(files / "train.bio")}
    fields |= {"batch_size": 4, "eval.batch_size": 4, "mesh.data": 1} | changes
    return recipe.with_fields(recipe.read_recipe(name), fields)


def built(config):
    mesh = create_mesh(config.mesh, jax.devices()[:1])
    return experiment.build(config, mesh)


def test_rows_have_words_characters_and_labels(files):
    run = built(config_of(files))
    batch = run.batch(0)
    assert run.task.labels == ("O", "B-LOC", "B-PER", "I-LOC", "I-PER")
    assert {k: v.shape for k, v in batch.items()}["characters"] == (4, 8, 24)
    assert "first" not in batch and batch["labels"].max() == 4
    np.testing.assert_array_equal(batch["mask"], batch["word_mask"])
    rare = {run.tokenizer.token(i) for i in batch["tokens"][batch["rare"]]}
    assert not rare  # each word occurs several times
    assert run.best == "dev/entity_f1" and run.baselines["dev"].metrics["entity_f1"] == 1.0
    (only,) = {len(rows["rare"][0]) for rows in [batch]}
    assert only == 8 and run.steps == 90  # 12 sentences, 3 batches, 30 epochs


def test_long_sentences_are_read_in_parts(files):
    """The scorer puts the parts together: gold tags in their rows score as gold."""
    run = built(config_of(files, "tagger.py:tiny,length=2"))
    columns = []
    for batch in run.heldout["dev"]():
        assert batch["tokens"].shape[1] == 2
        columns.append(batch | {"tags": batch["labels"]})
    scores, tags = run.scorers["dev"](columns)
    assert scores == dict.fromkeys(run.task.metrics, 1.0)
    assert list(map(len, tags)) == np.diff(read_sentences(files / "train.bio").offsets).tolist()


def test_all_splits_have_the_shapes_of_train(files, tmp_path):
    """A split of long sentences may have the longest row besides."""
    train, dev = tmp_path / "train.bio", tmp_path / "dev.bio"
    train.write_text("a X\nb Y\n\n" * 400 + "a X\n" * 19 + "\n" * 2)
    dev.write_text("a X\n" * 9 + "\n" + "a Y\n" * 30)
    paths = {"data.train": str(train), "data.dev": str(dev)}
    run = built(config_of(files, "tagger.py:tiny,length=40", **paths))
    lengths = {batch["tokens"].shape[1] for batch in run.heldout["dev"]()}
    assert lengths == {40}
    assert {run.batch(step)["tokens"].shape[1] for step in range(101)} == {4, 20}


def test_given_vectors_are_where_words_begin(files):
    path = str(files / "words.vec")
    fields = {"data.vectors": path, "model.embedding_size": 4}
    run = built(config_of(files, **fields))
    table = run.initial["encoder"]["word"]["embedding"]
    for word, row in (("Oslo", [0, 1, 2, 3]), ("likes", [4, 5, 6, 7]), ("paris", [8, 9, 10, 11])):
        assert table[run.tokenizer.id(word)].tolist() == row
    assert run.tokenizer.id("rome") and run.tokenizer.id("oslo") is None
    with pytest.raises(FirthError, match=r"vectors of 4 numbers, but model\.embedding_size=50"):
        built(config_of(files, **{"data.vectors": path}))
    with pytest.raises(FirthError, match=r"expected a file of word vectors"):
        built(config_of(files, **{"data.vectors": str(files)}))


def test_the_loss_is_the_crfs_and_falls(files):
    run = built(config_of(files, **{"model.dropout": 0.0, "objective.unknown_rate": 0.0}))
    batch, objective = run.batch(0), run.objective
    params = run.model.init(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]

    def loss(params):
        sums, metrics = bound(run.model, losses)(params, batch)
        return sums["tag"] / metrics["tag_loss"][1]

    def losses(model, batch):
        return objective.losses(model, batch, train=False)

    step = jit(lambda p: jax.tree.map(lambda x, g: x - 0.5 * g, p, jax.grad(loss)(p)))
    value = jit(loss)
    before = float(value(params))
    for _ in range(15):
        params = step(params)
    assert before > 1 and float(value(params)) < 0.5 * before
    assert float(batch["word_mask"].sum()) == float(objective.weights(batch)["tag"])


def test_half_of_the_rare_words_are_unknown():
    tokens = np.full((64, 8), 7, np.int32)
    batch = {
        "tokens": tokens,
        "rare": np.arange(8) < np.full((64, 1), 4),
        "example": np.arange(64, dtype=np.uint32),
        "copy": np.zeros(64, np.uint32),
    }
    found = np.asarray(Tag(unknown_rate=0.5).corrupt(batch, jax.random.key(0))["tokens"])
    assert (found[:, 4:] == 7).all() and 0.4 < (found[:, :4] == 0).mean() < 0.6
    again = Tag(unknown_rate=0.5).corrupt(batch, jax.random.key(0))["tokens"]
    np.testing.assert_array_equal(found, again)


def test_an_objective_of_tags_needs_a_task_of_tags(files):
    with pytest.raises(FirthError, match=r"no such task; use tagger\.py"):
        Tag.from_config({}, Sources(tokenizer=None))
    with pytest.raises(FirthError, match=r"objective\.unknown_rate=1\.5"):
        Tag(unknown_rate=1.5)


@pytest.mark.slow
def test_a_run_learns_and_its_model_tags_files(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["--config=tagger.py:tiny,crf=true,length=8", "--workdir=run", "--config.batch_size=8"]
    argv += [f"--config.data.{split}={files / 'train.bio'}" for split in ("train", "dev", "test")]
    argv += ["--config.eval.batch_size=8", "--config.epochs=60.0", "--config.eval.epochs=20.0"]
    assert main(["train", *argv, "--config.schedule.lr=0.01"]) == 0
    assert "baseline (each word's most frequent tag" in capsys.readouterr().err
    assert main(["evaluate", "--model=run", f"--data={files / 'train.bio'}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["entity_f1"] > 0.9 and set(found["by_type"]) == {"LOC", "PER"}
    argv = ["predict", "--model=run", f"--input={files / 'new.txt'}"]
    assert main([*argv, "--output=a.jsonl"]) == 0 and main([*argv, "--output=a.tsv"]) == 0
    first = json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])
    assert first["entities"] == [
        {"begin": 0, "end": 1, "type": "PER", "text": "Ann"},
        {"begin": 2, "end": 3, "type": "LOC", "text": "Oslo"},
    ]
    assert (tmp_path / "a.tsv").read_text().startswith("Ann\tB-PER\nlikes\tO\nOslo\tB-LOC\n")
    tags = (tmp_path / "run/predictions/test.tsv").read_text().splitlines()
    assert tags[:3] == ["B-PER", "O", "B-LOC"]
    assert main(["evaluate", "--workdir=run"]) == 0
    assert main(["report", "run", "--split=test"]) == 0
    page = (tmp_path / "run/report.html").read_text()
    assert "12 examples of test" in page and "words with the right tag" in page


def test_an_encoder_of_pieces_reads_first_pieces(files, store):
    """Rows of any encoder: a word's place is that of its first piece, also cut and divided."""
    from firth.data.tagging.rows import in_pieces
    from firth.tokenizers.load import load_tokenizer

    tokenizer, sentences = load_tokenizer(store / "tokenizer"), read_sentences(files / "train.bio")
    for length in (6, 40):
        rows = in_pieces(sentences, tokenizer, length, (("cls",), ("sep",), ("sep",)))
        assert np.diff(rows.offsets).max() <= length
        for row in range(len(rows.words) - 1):
            tokens = rows.tokens[rows.offsets[row] : rows.offsets[row + 1]]
            assert tokens[0] == tokenizer.cls_id and tokens[-1] == tokenizer.sep_id
            for word in range(rows.words[row], rows.words[row + 1]):
                ids = tokenizer.encode_flat([sentences.words[word]])[0]
                assert tokens[rows.first[word]] == ids[0]
