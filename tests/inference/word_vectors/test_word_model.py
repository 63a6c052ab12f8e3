"""Nearest words, analogies and vectors of texts, on vectors whose answers are known."""

import json

import numpy as np
import pytest

from firth import cli
from firth.errors import FirthError
from firth.inference.vectors import Pooling
from firth.inference.word_vectors.analogies import read_questions, score, solve
from firth.inference.word_vectors.model import WordModel
from firth.models.word_vectors import formats
from firth.weights.word_vectors.exchange import from_file

# man + royal = king, woman + royal = queen; each country and its capital differ by one direction
VECTORS = {
    "man": (1, 0, 0, 0, 0),
    "woman": (0, 1, 0, 0, 0),
    "king": (1, 0, 1, 0, 0),
    "queen": (0, 1, 1, 0, 0),
    "france": (0, 0, 0, 1, 0),
    "paris": (0.2, 0, 0, 1, 1),
    "italy": (0, 0, 0.2, 0.9, 0),
    "rome": (0.2, 0, 0.2, 0.9, 1),
}
QUESTIONS = """: capitals
France Paris Italy Rome
italy rome france paris
france paris spain madrid
: gram1-roles
man king woman queen
man king woman rome
man woman france italy
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.vec"
    formats.write(path, list(VECTORS), np.array(list(VECTORS.values()), np.float32))
    return path


@pytest.fixture
def model(file):
    return WordModel(file)


def test_neighbours_are_by_angle_and_without_the_word_itself(model, file, capsys):
    assert cli.main(["neighbours", "--model", str(file), "king", "paris", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # king and man: 1 / sqrt 2; king and queen: 1 / 2
    assert lines[:3] == ["== king", "0.707  man", "0.500  queen"]
    assert lines[3] == "== paris" and lines[4].endswith("  rome")
    assert cli.main(["neighbours", "--model", str(file), "--json", "king", "--top=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"query": "king", "word": "man", "similarity": pytest.approx(0.5**0.5)}
    assert len(model.neighbours(model.vectors[:1], [[0]], 99)[0]) == len(VECTORS) - 1


def test_analogies_are_solved_without_their_own_words(model, file, capsys):
    # from man, king, woman: b - a + c on unit vectors is nearest to king itself, then queen
    assert solve(model, ("man", "king", "woman"), 3)[0][0] == "queen"
    unit = {word: np.array(v) / np.linalg.norm(v) for word, v in VECTORS.items()}
    asked = unit["king"] - unit["man"] + unit["woman"]
    cosine = asked @ unit["queen"] / np.linalg.norm(asked)
    assert solve(model, ("man", "king", "woman"), 1)[0][1] == pytest.approx(cosine, abs=1e-6)
    assert cli.main(["analogy", "--model", str(file), "france", "paris", "italy", "--top=1"]) == 0
    assert capsys.readouterr().out.endswith("  rome\n")


def test_questions_have_accuracies_by_section(model, file, tmp_path, capsys):
    path = tmp_path / "questions.txt"
    path.write_text(QUESTIONS)
    sections = read_questions(str(path))
    assert [(name, len(q)) for name, q in sections] == [("capitals", 3), ("gram1-roles", 3)]
    found = {one.name: one[1:] for one in score(model, sections)}
    assert found == {
        "capitals": (2, 2, 1),
        "gram1-roles": (2, 3, 0),  # the last one's vector is nearest to its own words
        "semantic": (2, 2, 1),
        "syntactic": (2, 3, 0),
        "total": (4, 5, 1),
    }
    some = {one.name: one[1:] for one in score(model, sections, 6)}
    assert some["capitals"] == (0, 0, 3) and some["gram1-roles"] == (1, 1, 2)
    argv = ["analogy", "--model", str(file), "--questions", str(path)]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1].split() == ["total", "80.0", "%", "4", "5", "1"]
    assert cli.main([*argv, "--json", "--most-frequent=6"]) == 0
    first, *_, total = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["accuracy"] is None and total["accuracy"] == 1.0


def test_an_unknown_word_is_answered_by_spellings_near_it(model):
    with pytest.raises(FirthError, match=r"'qeen' is none of the 8 words.*near it are queen"):
        model.find("qeen")
    with pytest.raises(FirthError, match=r"'zzz' is none of the 8 words that have a vector$"):
        model.find("zzz")


def test_a_text_is_the_mean_of_its_words(model, caplog):
    caplog.set_level("INFO", "firth")
    lines = [("1", "man unknown king"), ("2", ("queen", "rome rome")), ("3", "")]
    one, two, none = model.texts(iter(lines), Pooling((0,), "mean"))
    v = {word: np.array(values, np.float32) for word, values in VECTORS.items()}
    np.testing.assert_allclose(one.values, [(v["man"] + v["king"]) / 2])
    np.testing.assert_allclose(two.values, [(v["queen"] + 2 * v["rome"]) / 3])
    assert not none.values.any() and "texts without a word that has a vector: 1;" in caplog.text
    words = next(model.texts(iter(lines), Pooling((0,), "none", True), 3)).values
    assert words.shape == (2, 1, 5)
    np.testing.assert_allclose(words[1, 0], v["king"] / np.linalg.norm(v["king"]))
    (cut,) = model.texts(iter([("1", "man king queen")]), Pooling((0,), "mean"), 1)
    np.testing.assert_allclose(cut.values[0], v["man"])
    np.testing.assert_allclose(model.encode(["man", "king"])[1], v["king"])


def test_represent_and_search_take_word_vectors(file, tmp_path, capsys):
    texts, output = tmp_path / "texts.txt", tmp_path / "vectors.npz"
    texts.write_text("man king\nparis rome\n")
    argv = ["--model", str(file), "--input", str(texts), "--output", str(output)]
    assert cli.main(["represent", *argv]) == 0
    with np.load(output) as archive:
        assert archive["vectors"].shape == (2, 5) and archive["layers"].tolist() == [0]
    argv = ["--vectors", str(output), "--texts", str(texts), "--query", "france"]
    capsys.readouterr()
    assert cli.main(["search", *argv]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("paris rome")


@pytest.mark.parametrize("name", ["out.bin", "out.txt", "out.glove.txt"])
def test_folders_and_files_become_each_other(file, tmp_path, name, capsys):
    folder, out, again = tmp_path / "folder", tmp_path / name, tmp_path / "again"
    for source, target in ((file, folder), (folder, out), (out, again)):
        assert cli.main(["convert", "--from", str(source), "--to", str(target)]) == 0
    for target, said in ((out, "exists already"), (tmp_path / "gone" / name, "gone is no folder")):
        assert cli.main(["convert", "--from", str(folder), "--to", str(target)]) == 2
        assert said in capsys.readouterr().err
    for found in (WordModel(folder), WordModel(again)):
        assert found.words == list(VECTORS)
        np.testing.assert_array_equal(found.vectors, WordModel(file).vectors)


def test_special_tokens_among_the_words_keep_their_vectors(tmp_path):
    names = ["the", "<eos>", "<unk>", "</s>"]
    formats.write(tmp_path / "v.bin", names, np.arange(8, dtype=np.float32).reshape(4, 2))
    from_file(tmp_path / "v.bin", tmp_path / "folder")
    model = WordModel(tmp_path / "folder")
    assert model.words == names and model.vectors[2].tolist() == [4, 5]
    assert model.tokenizer.unk_id == model.tokenizer.id("<unk>") == 0


def test_a_place_without_word_vectors_is_refused(tmp_path):
    with pytest.raises(FirthError, match="holds no word vectors; expected the workdir"):
        WordModel(tmp_path)
    (tmp_path / "q.txt").write_text("a b c\n")
    with pytest.raises(FirthError, match=r"q\.txt:1: 3 words, expected four"):
        read_questions(str(tmp_path / "q.txt"))
    (tmp_path / "q.txt").write_text(": only a section\n")
    with pytest.raises(FirthError, match="has no questions"):
        read_questions(str(tmp_path / "q.txt"))
