"""Search by cosine similarity, against scikit-learn, and the command."""

import json

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from sklearn.metrics.pairwise import cosine_similarity

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference import search

TEXTS = ["the cat sat", "the dog ran", "fish ate food", "cats and dogs"]


def test_the_nearest_are_those_of_scikit_learn(monkeypatch):
    monkeypatch.setattr(search, "ROWS", 16)
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(50, 8)) * 5, rng.normal(size=(3, 8)) * 9
    expected = cosine_similarity(queries, vectors)
    for found, row in zip(search.nearest(vectors, queries, 7), expected, strict=True):
        assert [hit.row for hit in found] == np.argsort(-row)[:7].tolist()
        similar = [hit.similarity for hit in found]
        np.testing.assert_allclose(similar, np.sort(row)[:-8:-1], rtol=1e-5)
    assert len(search.nearest(vectors, queries, 99)[0]) == 50
    with pytest.raises(FirthError, match="width 8, but those of the queries 7"):
        search.nearest(vectors, queries[:, :7], 3)


def test_a_vector_of_zeros_is_like_nothing():
    (found,) = search.nearest(np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 0.0]]), 2)
    assert [hit.row for hit in found] == [1, 0] and found[1].similarity == 0.0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a model `m`, texts and their vectors of layer 1 by the first token."""
    folder = tmp_path_factory.mktemp("made")
    make_bert(folder / "m", "BertForPreTraining", num_hidden_layers=2)
    add_tokenizer(folder / "m")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    for name in ("v.npz", "v.jsonl", "v.npy"):
        argv = ["--model", folder / "m", "--input", folder / "texts.txt", "--output", folder / name]
        argv += ["--layers=1", "--pool=cls"]
        assert cli.main(["represent", *map(str, argv)]) == 0
    return folder


def test_the_command_searches_by_what_the_file_says(made, capsys, monkeypatch):
    """The .npz says model, layer and pooling; so a text is most like itself."""
    monkeypatch.chdir(made)
    capsys.readouterr()
    argv = ["search", "--vectors", "v.npz", "--texts", "texts.txt", "--top=2"]
    argv += ["--query", *TEXTS[1:3]]
    assert cli.main([*argv, "--json"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [hit["text"] for hit in hits[::2]] == TEXTS[1:3] == [hit["query"] for hit in hits[::2]]
    assert all(abs(hit["similarity"] - 1) < 1e-5 for hit in hits[::2]) and len(hits) == 4
    vectors = firth.load("m").encode(TEXTS, layer=1, pool="cls")
    second = np.sort(cosine_similarity(vectors[1:2], vectors)[0])[-2]
    assert abs(hits[1]["similarity"] - second) < 1e-5
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"== {TEXTS[1]}" and lines[1] == f"1.000       2  {TEXTS[1]}"


def test_other_files_need_to_be_told(made, capsys, monkeypatch):
    monkeypatch.chdir(made)
    capsys.readouterr()
    options = ["--model=m", "--layer=1", "--pool=cls", "--top=1", "--query", TEXTS[2]]
    assert cli.main(["search", "--vectors=v.jsonl", *options]) == 0
    assert capsys.readouterr().out == f"1.000       3  {TEXTS[2]}\n"  # it holds the texts
    assert cli.main(["search", "--vectors=v.npy", *options]) == 0
    assert capsys.readouterr().out == "1.000       3\n"
    assert cli.main(["search", "--vectors=v.npy", "--query", "a"]) == 2
    assert "v.npy does not say which model made it; give --model" in capsys.readouterr().err
