"""Answers from logits, against all spans of all windows in plain loops."""

import json

import numpy as np
import pytest
from helpers.questions import asked, squad, towns, write

from firth.data.answering.decode import BEST, NEVER, Answered, Predicted, Span, decode
from firth.data.answering.files import read_squad
from firth.data.answering.windows import in_windows
from firth.errors import FirthError
from firth.tokenizers.load import train_tokenizer
from firth.tokenizers.special_tokens import BERT

TEXT = "In 2000 Ann lived in Oslo by the sea, in Rome by the sea. Bob lived in Oslo."


@pytest.fixture(scope="module")
def tokenizer():
    texts = [paragraph["context"] for paragraph in towns()["data"][0]["paragraphs"]]
    return train_tokenizer("wordpiece", [*texts, TEXT] * 2, 200)


def laid_out(tmp_path, tokenizer, whole, **options):
    questions = read_squad(write(tmp_path / "a.json", whole))
    options = dict(length=16, stride=3, question_length=4) | options
    return questions, in_windows(questions, tokenizer, roles=BERT, **options)


def random_logits(windows, seed):
    rng = np.random.default_rng(seed)
    sizes = np.diff(windows.rows.offsets)
    return [rng.normal(size=(n + 2, 2)).astype(np.float32) for n in sizes]  # with padding


def all_spans(questions, windows, logits, n, longest):
    """{text: best (score, begin, end)} of every span that may answer, and the scores of none."""
    context, found, nulls = questions.contexts[questions.context[n]], {}, []
    own = np.flatnonzero(windows.question == n)

    def around(w, token):
        left = token - windows.begin[w]
        right = windows.begin[w] + windows.size[w] - 1 - token
        return min(left, right) + 0.01 * windows.size[w] if min(left, right) >= 0 else -1

    for w in own:
        row, first, begin = logits[w].astype(float), windows.first[w], windows.begin[w]
        nulls.append(row[windows.null[w]].sum())
        for i in range(windows.size[w]):
            if max(own, key=lambda v, t=begin + i: around(v, t)) != w:
                continue
            for j in range(i, min(i + longest, windows.size[w])):
                a = windows.spans[windows.contexts[n] + begin + i][0]
                b = windows.spans[windows.contexts[n] + begin + j][1]
                score = row[first + i, 0] + row[first + j, 1]
                if context[a:b] not in found or score > found[context[a:b]][0]:
                    found[context[a:b]] = (score, a, b)
    return found, min(nulls)


@pytest.mark.parametrize("longest", [1, 4, 30])
@pytest.mark.parametrize("length", [16, 64])
def test_the_best_spans_of_all_windows(tmp_path, tokenizer, longest, length):
    whole = squad((TEXT, [asked("1", "Ann?", TEXT, "Oslo"), asked("2", "Bob", TEXT)]))
    questions, windows = laid_out(tmp_path, tokenizer, whole, length=length)
    assert (len(windows) > 2) == (length == 16)
    for seed in range(10):
        logits = random_logits(windows, seed)
        for n, one in enumerate(decode(questions, windows, logits, longest=longest)):
            wanted, null = all_spans(questions, windows, logits, n, longest)
            ordered = sorted(wanted.items(), key=lambda item: -item[1][0])
            assert one.best[0].text == ordered[0][0]
            assert (one.best[0].begin, one.best[0].end) == ordered[0][1][1:]
            np.testing.assert_allclose(one.best[0].score, ordered[0][1][0], rtol=1e-5)
            np.testing.assert_allclose(one.null.score, null, rtol=1e-5)
            np.testing.assert_allclose(one.null_odds, null - ordered[0][1][0], rtol=1e-4)
            # A text that stands twice takes a place of the twenty of its window.
            assert [s.text for s in one.best[:5]] == [text for text, _ in ordered[:5]]
            texts = [s.text for s in one.best]
            assert len(set(texts)) == len(texts) <= BEST
            assert all(TEXT[s.begin : s.end] == s.text for s in one.best)


def test_the_padding_of_a_batch_answers_nothing(tmp_path, tokenizer):
    whole = squad((TEXT, [asked("1", "Ann?", TEXT, "Oslo")]))
    questions, windows = laid_out(tmp_path, tokenizer, whole, length=64)
    (row,) = random_logits(windows, 0)
    row[: windows.first[0]], row[windows.first[0] + windows.size[0] :] = 9, 9
    (one,) = decode(questions, windows, [row])
    assert one.best[0].score < 9 and one.null.score == 18


def answered(*scores, null=0.0):
    spans = [Span(f"t{n}", n, n + 1, score, 0.0) for n, score in enumerate(scores)]
    return Answered(tuple(spans), Span("", -1, -1, null, 0.0))


def test_no_answer_wins_above_the_threshold():
    one = answered(2.0, 1.0, null=3.0)
    assert one.null_odds == 1.0
    assert one.answer(None).text == "t0" and one.answer(1.0).text == "t0"
    assert one.answer(0.999).text == "" and one.answer(0.0).begin == -1
    listed = one.ranked(0.0)
    assert [span.text for span, _ in listed] == ["", "t0", "t1"]
    whole = np.exp([3.0, 2.0, 1.0])
    np.testing.assert_allclose([p for _, p in listed], whole / whole.sum())
    assert [span.text for span, _ in one.ranked(None)] == ["t0", "t1"]
    listed = answered(2.0, 1.0, 0.5, null=-1.0).ranked(0.0, 2)  # no answer is always among them
    assert [span.text for span, _ in listed] == ["t0", "t1", ""]
    np.testing.assert_allclose(sum(p for _, p in listed), 1)
    assert [span.text for span, _ in one.ranked(0.0, 2)] == ["", "t0"]
    np.testing.assert_allclose(sum(p for _, p in one.ranked(None)), 1)


def test_a_context_without_tokens_has_no_answer(tmp_path, tokenizer):
    """BERT's code fails here (google-research/bert#211)."""
    questions, windows = laid_out(tmp_path, tokenizer, squad((" ", [asked("1", "Ann?", " ")])))
    (one,) = decode(questions, windows, random_logits(windows, 0))
    assert one.best == () and one.null_odds == NEVER
    assert one.answer(None).text == "" and one.ranked(None)[0][1] == 1.0


def test_logits_that_are_not_finite(tmp_path, tokenizer):
    questions, windows = laid_out(tmp_path, tokenizer, squad((TEXT, [asked("q", "Ann?", TEXT)])))
    logits = random_logits(windows, 0)
    logits[1][windows.first[1] + 1] = np.nan
    with pytest.raises(FirthError, match=r"question 'q': what the model gives is not finite"):
        decode(questions, windows, logits)


def test_white_space_is_no_part_of_an_answer(tmp_path):
    """A vocabulary may count the space before a word to its token."""
    context = "a  b"
    questions = read_squad(write(tmp_path / "a.json", squad((context, [asked("1", "b", "a  b")]))))
    tokenizer = train_tokenizer("wordpiece", ["a b"] * 3, 50)
    windows = in_windows(questions, tokenizer, length=16, stride=8, question_length=4, roles=BERT)
    windows.spans[:] = [[0, 1], [1, 4]]
    logits = np.zeros((8, 2), np.float32)
    logits[windows.first[0] + 1] = 5
    (one,) = decode(questions, windows, [logits])
    assert (one.best[0].text, one.best[0].begin, one.best[0].end) == ("b", 3, 4)


def test_the_official_files(tmp_path):
    ones = [answered(2.0, 1.0, null=3.0), answered(4.0, null=1.0)]
    paths = Predicted(["a", "b"], ones, 0.0).write(tmp_path / "p.json")
    names = ["p.json", "nbest_p.json", "null_odds_p.json"]
    assert [path.name for path in paths] == names
    found = [json.loads(path.read_text()) for path in paths]
    assert found[0] == {"a": "", "b": "t0"} and found[2] == {"a": 1.0, "b": -3.0}
    assert found[1]["b"][0]["text"] == "t0" and found[1]["b"][0]["start_logit"] == 4.0
    assert set(found[1]["a"][0]) == {"text", "probability", "start_logit", "end_logit"}
    paths = Predicted(["a", "b"], ones, None).write(tmp_path / "q.json", ranked=False)
    assert [path.name for path in paths] == ["q.json"]
    assert json.loads(paths[0].read_text()) == {"a": "t0", "b": "t0"}
