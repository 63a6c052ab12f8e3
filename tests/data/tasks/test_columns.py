import pytest

from firth.data.tasks.columns import label_column, text_columns
from firth.errors import FirthError


@pytest.mark.parametrize(
    ("header", "texts", "label"),
    [
        ("text label", "text", "label"),
        ("id Text Label", "Text", "Label"),
        ("index sentence1 sentence2 score", "sentence1 sentence2", "score"),  # RTE's, STS-B's
        ("index question sentence label", "question sentence", "label"),  # QNLI's
        ("id qid1 qid2 question1 question2 is_duplicate", "question1 question2", "is_duplicate"),
        ("premise hypothesis gold_label", "premise hypothesis", "gold_label"),
        ("text text_pair labels", "text text_pair", "labels"),
        ("review stars", "review", "stars"),
        ("text title comment label score class", "text", "label"),  # these two names come first
        ("id utt class", "utt", "class"),  # no name is known, but one alone can be the text
        ("SENTENCE-1 Sentence_2 y label", "SENTENCE-1 Sentence_2", "label"),
        ("Text text label", "Text", "label"),  # one after normalising: the first
    ],
)
def test_columns_are_found_by_their_names(header, texts, label):
    header = header.split()
    assert text_columns(header, "a.csv:1") == tuple(texts.split())
    assert label_column(header, "a.csv:1") == label


def test_spaces_and_signs_of_a_name_do_not_count():
    header = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]  # MRPC's
    assert text_columns(header, "a") == ("#1 String", "#2 String")
    assert label_column(header, "a") == "Quality"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("review comment label", r"^a\.csv:1: the text may be in review or comment; .* --t="),
        ("sentence1 sentence2 review", "may be in sentence1,sentence2 or review"),
        ("question context answer", "may be in question,answer or question,context"),
        ("colour shape label", "may be in colour or shape"),
        ("id label", "no column is known to hold texts; there are: 'id', 'label'; choose"),
        ("greatfilm", "no column is known to hold texts"),  # it may be a text
    ],
)
def test_a_text_that_is_not_clear_is_asked_for(header, said):
    with pytest.raises(FirthError, match=said):
        text_columns(header.split(), "a.csv:1", "--t")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("text score stars", r"^a: the label may be in score or stars; .*choose by data\.label="),
        ("text colour", "known to hold labels; there are: 'text', 'colour'; choose by data.label="),
    ],
)
def test_a_label_that_is_not_clear_is_asked_for(header, said):
    with pytest.raises(FirthError, match=said):
        label_column(header.split(), "a", "data.label")
