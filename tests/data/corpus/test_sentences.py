# ruff: noqa: RUF001  (the stops of other scripts are among what is tested)
"""Sentence segmentation: the rules one by one, and its agreement with people's judgement."""

import gzip
import random

import pytest

from firth.data.corpus.sentences import split_sentences


@pytest.mark.parametrize(
    "text",
    [
        "The vase broke.| It fell!| Did it?| Yes.",
        "Mr. Smith met Dr. J. R. Firth at 3.14 p.m. in Leeds.| They spoke.",
        "He lives in the U.S.| The vase does not.",
        "The U.S. Army bought it from Acme Inc. Friday.| It broke.",
        "See Fig. 3 and pp. 12 ff. for more, e.g. vases.",
        "I said no.| We left.| It was no. 5 then.",
        "“Why?” he asked.| “No.”| She left…| He stayed.",
        '"It broke (twice)."| (It had been whole.)| Then it was gone.',
        "It cost $5.00.| 20 people saw it.",
        "1. Methods are first.| 2. Results follow.",
        "It fell.[1][2]| Nobody saw it.[citation]| The end.",
        "wait... what?! no.",
        "他走了。|她来了！|好吗？|是。",
        "वह गया।| वह आया।",
        "Version 2.0 of example.com is out.| Get it.",
        "no punctuation at all",
        "He came on Jan. 5 with J. A. Smith et al. from Rome.| A dog came too.",
        "We met Capt. Smith, approx. 5 of us.| Captains came.| Prof. Captain left.",
        "wait.... a vase.[1] a 花瓶。。 b 花瓶。[1] c",
        "花.。|瓶 é.  vasé.| Ñ.",
        "It was he . He left .".replace(" . ", " .| "),  # tokenised text
    ],
)
def test_rules(text):
    expected = text.split("|")
    assert split_sentences("".join(expected)) == expected
    assert split_sentences(f" \t{''.join(expected)} \r") == expected


def test_nothing_is_lost_or_empty():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(
            rng.choices(["a", "B", "Mr", ".", "!", "…", " ", "  ", '"', ")", "。", "1"], k=25)
        )
        sentences = split_sentences(text)
        assert "".join(sentences) == text.strip()
        assert all(s.strip() for s in sentences)


@pytest.mark.parametrize("piece", ["A. ", "Mr. ", "1. ", ". ", ".", " ", '."', "a. b "])
def test_time_grows_with_length_alone(piece):
    split_sentences(piece * 300_000)  # quadratic time would be hours


def test_agreement_with_annotators(shared_data):
    """Boundaries inside the paragraphs of English Web Treebank, a hard, unedited genre."""
    path = shared_data("ud_english_ewt/en_ewt-ud-test.conllu.gz")
    paragraphs = [[]]
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(("# newpar", "# newdoc")):
                paragraphs.append([])
            elif line.startswith("# text = "):
                paragraphs[-1].append(line.removeprefix("# text = ").strip())

    def boundaries(sentences, gap):
        ends, at = set(), 0
        for sentence in sentences[:-1]:
            at += len(sentence)
            ends.add(at)
            at += gap
        return ends

    right = found = true = 0
    for sentences in paragraphs:
        ours = boundaries(split_sentences(" ".join(sentences)), gap=0)
        theirs = boundaries(sentences, gap=1)
        right, found, true = right + len(ours & theirs), found + len(ours), true + len(theirs)
    assert true > 800
    assert right / found > 0.97  # precision
    assert right / true > 0.68  # recall: headings, signatures and lower-case starts are missed
