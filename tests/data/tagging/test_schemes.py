"""Schemes of entities, and how they are counted."""

import collections
import logging
import re

import numpy as np
import pytest

from firth.data.tagging.files import read_sentences
from firth.data.tagging.load import load_tagging
from firth.data.tagging.metrics import MostFrequent, baselines, by_type, score_tags
from firth.data.tagging.schemes import allowed, marks_entities, misplaced, misspelt, spans, to_bio
from firth.errors import FirthError

METRICS = ("entity_f1", "entity_precision", "entity_recall", "accuracy")


@pytest.mark.parametrize(
    ("tags", "bio"),
    [
        ("I-A I-A B-A O I-B I-A", "B-A I-A B-A O B-B B-A"),  # IOB1
        ("B-A I-A B-A O B-B I-B", "B-A I-A B-A O B-B I-B"),  # BIO stays
        ("B-A E-A S-A O B-B I-B E-B", "B-A I-A B-A O B-B I-B I-B"),  # BIOES
        ("B-A L-A U-B", "B-A I-A B-B"),  # BILOU
        ("B-A S-A I-A E-A E-A O E-B", "B-A B-A B-A I-A B-A O B-B"),  # after a last word
        ("O I-A-B", "O B-A-B"),
    ],
)
def test_every_scheme_is_read_as_bio(tags, bio):
    assert to_bio(tags.split()) == bio.split()
    assert to_bio(bio.split()) == bio.split()


def test_spans():
    assert spans(["B-A", "I-A", "O", "I-B", "I-B", "B-B"]) == [
        (0, 2, "A"),
        (3, 5, "B"),
        (5, 6, "B"),
    ]
    assert spans(["O", "O"]) == []


@pytest.mark.parametrize(
    ("sentences", "wrong"),
    [
        (["B-A I-A O B-A B-B", "O", "B-A"], None),
        (["I-A I-A B-A O I-B I-A"], None),  # IOB1
        (["B-A E-A S-A O B-B I-B L-B", "U-A"], None),
        (["B-A", "B-B", "O I-B I-A"], (3, "O", "I-B", "BIO", 2)),
        (["I-A O I-A", "I-A I-A", "O B-B", "B-A I-A"], (6, "O", "B-B", "IOB1", 2)),
        (["S-A I-A E-A"], (1, "S-A", "I-A", "BIOES", 1)),
        (["S-A B-A O"], (2, "B-A", "O", "BIOES", 1)),
        (["B-A E-B"], (1, "B-A", "E-B", "BIOES", 1)),
        (["O S-A", "O B-A", "O"], (3, "B-A", "", "BIOES", 1)),
    ],
)
def test_the_first_tag_that_breaks_its_scheme(sentences, wrong):
    assert misplaced([tags.split() for tags in sentences]) == wrong


def test_a_tag_that_breaks_the_scheme_is_named_with_its_line(tmp_path, caplog):
    (tmp_path / "t").write_text("a B-X\nb I-X\n\nc O\nd I-X\ne B-X\n")
    said = r"t:5: 'I-X' after 'O' is not BIO, the scheme of most tags here; 1 of 5 break it"
    with caplog.at_level(logging.INFO):
        _, splits = load_tagging({"train": "t", "dev": "t"}, directory=str(tmp_path))
    assert len(caplog.messages) == 2 and all(re.search(said, text) for text in caplog.messages)
    assert splits["dev"].tags == ["B-X", "I-X", "O", "B-X", "B-X"]


def test_one_misspelt_tag_does_not_make_entities_parts_of_speech(tmp_path):
    lines = ["a B-X\n"] * 120
    lines[7] = "a PER\n"
    (tmp_path / "t").write_text("".join(lines))
    said = r"t:8: the tag 'PER' is neither O nor of the kind B-PER or I-PER, as nearly all others"
    with pytest.raises(FirthError, match=said):
        load_tagging({"train": "t", "dev": "t"}, directory=str(tmp_path))
    assert misspelt(["NN"] * 200 + ["B-X"]) is None and misspelt(["O"] * 200 + ["X"]) is None
    assert misspelt(["B-X"] * 97 + ["X"] * 3) is None and misspelt(["B-X"] * 9) is None


def test_which_tags_mark_entities():
    assert marks_entities(["O", "B-A", "I-A"]) and marks_entities(["I-A"])
    assert not marks_entities(["O"]) and not marks_entities(["NOUN", "O"])
    assert not marks_entities(["B-NP", "X"])


def test_steps_that_bio_allows():
    labels = ("O", "B-A", "I-A", "I-B")
    found = allowed(labels)
    for i, before in enumerate((*labels, "")):
        for j, tag in enumerate(labels):
            good = not tag.startswith("I") or before in (f"B-{tag[2:]}", tag)
            assert found[i, j] == good
    assert allowed(("NOUN", "I-A")).all()


def conlleval(gold, predicted):
    """Counts of entities as the CoNLL script keeps them, chunk by chunk."""
    counts = collections.Counter()
    for a, b in zip(gold, predicted, strict=True):
        ours, theirs = set(spans(a)), set(spans(b))
        counts.update(right=len(ours & theirs), gold=len(ours), found=len(theirs))
    return counts


def test_scores_are_those_of_conlleval():
    """Random tags, malformed ones among them; the worked example of the script's page."""
    rng, labels = np.random.default_rng(0), np.array(["O", "B-A", "I-A", "B-B", "I-B"])
    gold, predicted = ([labels[rng.integers(0, 5, n)].tolist() for n in range(1, 40)] for _ in "ab")
    counts = conlleval(gold, predicted)
    found = score_tags(METRICS, gold, predicted)
    precision, recall = counts["right"] / counts["found"], counts["right"] / counts["gold"]
    assert found["entity_precision"] == pytest.approx(precision)
    assert found["entity_recall"] == pytest.approx(recall)
    assert found["entity_f1"] == pytest.approx(2 * precision * recall / (precision + recall))
    flat = [np.concatenate(side) for side in (gold, predicted)]
    assert found["accuracy"] == pytest.approx((flat[0] == flat[1]).mean())
    kinds = by_type(gold, predicted)
    assert sum(kind["entities"] for kind in kinds.values()) == counts["gold"]
    assert score_tags(METRICS, [["O"]], [["O"]])["entity_f1"] == 0.0


def test_the_most_frequent_tag_of_each_word(tmp_path):
    (tmp_path / "t").write_text("a X\na Y\na Y\nb X\n\nc X\n")
    (tmp_path / "d").write_text("a X\nb X\nnew X\nA Y\n")
    task, splits = load_tagging({"train": "t", "dev": "d"}, directory=str(tmp_path))
    guess = MostFrequent(splits["train"])
    assert guess.other == "X" and guess(splits["dev"]) == [["Y", "X", "X", "X"]]
    assert baselines(task, splits)["dev"].metrics == {"accuracy": 0.5}
    assert "most frequent tag in train, else 'X'" in str(baselines(task, splits)["dev"])


def test_the_baseline_of_conll_2003(shared_data):
    """Independently measured: about .65 and .55."""
    files = {"train": "train", "dev": "testa", "test": "testb"}
    files = {k: str(shared_data(f"conll2003/eng.{v}.gz")) for k, v in files.items()}
    task, splits = load_tagging(files)
    counts = collections.Counter(tag[2:] for tag in splits["train"].tags if tag[0] == "B")
    assert counts == {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}
    found = baselines(task, splits)
    assert found["dev"].metrics["entity_f1"] == pytest.approx(0.65, abs=0.01)
    assert found["test"].metrics["entity_f1"] == pytest.approx(0.55, abs=0.01)
    assert len(read_sentences(files["dev"]).tags) == len(splits["dev"].tags)
