"""Words with their tags as text, and what is measured of a file that has other tags."""

import json

import pytest

from firth.data.tagging.files import read_sentences
from firth.errors import FirthError
from firth.inference.tagging.output import output_format, report, written
from firth.inference.tagging.tagger import check_labels, measure, part

LABELS = ("O", "B-X", "I-X")
WORDS, TAGS = [["a", "b", "c"], ["d"]], [["B-X", "I-X", "O"], ["O"]]


def test_columns_and_objects():
    assert written("tsv", WORDS, TAGS, LABELS) == b"a\tB-X\nb\tI-X\nc\tO\n\nd\tO\n\n"
    first, second = map(json.loads, written("jsonl", WORDS, TAGS, LABELS).splitlines())
    assert first["entities"] == [{"begin": 0, "end": 2, "type": "X", "text": "a b"}]
    assert second == {"words": ["d"], "tags": ["O"], "entities": []}
    assert "entities" not in json.loads(written("jsonl", [["é"]], [["N"]], ("N", "V")))


def test_formats_of_outputs():
    names = ("a.jsonl", "a.tsv", "a.bio", "-")
    assert list(map(output_format, names)) == ["jsonl", "tsv", "tsv", "tsv"]
    with pytest.raises(FirthError, match=r"--output a\.csv: expected"):
        output_format("a.csv")


def test_measures_of_a_file(tmp_path):
    """Its tags may have another scheme, and one that the model does not know."""
    (tmp_path / "a.bio").write_text("a I-X\nb I-X\nc I-Z\n\nd O\n")
    sentences = read_sentences(tmp_path / "a.bio")
    found = measure(LABELS, sentences, TAGS)
    assert (found["sentences"], found["words"], found["unknown_tags"]) == (2, 4, 1)
    assert found["metrics"]["accuracy"] == 0.75
    assert found["metrics"]["entity_precision"] == 1 and found["metrics"]["entity_recall"] == 0.5
    assert found["by_type"]["X"]["f1"] == 1 and found["by_type"]["Z"]["entities"] == 1
    text = report(found)
    assert "1 words have a tag that the model does not know" in text and "accuracy" in text
    assert "count wrong ('B-Z')" in text and found["unknown"] == {"B-Z": 1}
    one = part(sentences, 1, 2)
    assert (one.words, one.tags) == (["d"], ["O"])
    assert (one.offsets.tolist(), one.lines.tolist()) == ([0, 1], [5])


@pytest.mark.parametrize(
    ("text", "labels", "said"),
    [
        ("a VBZ\nb NNP\n", LABELS, r"a\.bio: the model marks entities, .* 'NNP', 'VBZ'; .* line 1"),
        ("a B-X\nb XX\n", LABELS, r"a\.bio: the model marks .*the first other is 'XX' in line 2"),
        ("a B-X\nb O\n", ("N", "V"), r"does not mark entities, as in 'N', 'V', .* 'B-X', 'O'$"),
        ("a B-Z\n", LABELS, "none of its tags, 'B-Z', is one of the model's: 'O', 'B-X', 'I-X'"),
        ("a X\n", ("N", "V"), "none of its tags, 'X', is one of the model's: 'N', 'V'"),
    ],
)
def test_a_file_of_other_labels_is_refused(tmp_path, text, labels, said):
    (tmp_path / "a.bio").write_text(text)
    sentences = read_sentences(tmp_path / "a.bio")
    with pytest.raises(FirthError, match=said):
        check_labels(labels, sentences)


def test_a_file_without_any_entity_is_measured(tmp_path):
    (tmp_path / "a.bio").write_text("a O\nb O\n")
    sentences = read_sentences(tmp_path / "a.bio")
    check_labels(LABELS, sentences)
    found = measure(LABELS, sentences, [["O", "B-X"]])
    assert found["metrics"]["accuracy"] == 0.5
