"""Rows of questions: windows of contexts, where answers are in them, and who shows a token best."""

import json
import re

import numpy as np
import pytest
from helpers.questions import asked, squad, towns, write

from firth.data.answering.files import read_squad
from firth.data.answering.windows import AnswerBuckets, in_windows, max_context
from firth.errors import FirthError
from firth.models.model import family
from firth.tokenizers.load import load_tokenizer, train_tokenizer

FAMILIES = {
    "bert": "bert-base-uncased-vocab.txt",
    "roberta": "roberta-base-vocab.json",
    "xlnet": "xlnet-base-cased-spiece.model",
}
TEXTS = [paragraph["context"] for paragraph in towns()["data"][0]["paragraphs"]] * 3


@pytest.fixture(scope="module")
def small():
    """A small WordPiece."""
    return train_tokenizer("wordpiece", TEXTS, 200)


def laid_out(questions, tokenizer, name="bert", **options):
    options = dict(length=24, stride=4, question_length=8) | options
    return in_windows(questions, tokenizer, roles=family(name).SPECIAL_TOKENS, **options)


def row(windows, w):
    """(tokens, segments) of a window, from a batch."""
    for batch in AnswerBuckets(windows).sequential(3):
        for r in np.flatnonzero(batch["example"] == w):
            mask = batch["mask"][r]
            return batch["tokens"][r][mask].tolist(), batch["segments"][r][mask].tolist()
    raise AssertionError(w)


def one_by_one(question, context, room, stride):
    """BERT's loop: (first token, number of tokens) of each window."""
    spans, begin = [], 0
    while begin < len(context) or not spans:
        size = min(len(context) - begin, room)
        spans.append((begin, size))
        if begin + size == len(context):
            break
        begin += min(size, stride)
    return spans


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("length", "stride"), [(64, 16), (48, 40), (384, 128)])
def test_rows_of_real_questions(shared_data, name, length, stride):
    """Windows, specials and targets are those of a plain loop over `Tokenizer.encode`."""
    tokenizer = load_tokenizer(shared_data(f"vocabs/{FAMILIES[name]}"))
    questions = read_squad(shared_data("qa/xquad.en.json.gz")).part(100, 160)
    windows = laid_out(questions, tokenizer, name, length=length, stride=stride, question_length=16)
    cls, sep = [tokenizer.cls_id], [tokenizer.sep_id]
    w, held = 0, 0
    for n, text in enumerate(questions.texts):
        context = questions.contexts[questions.context[n]]
        whole, q = tokenizer.encode([context])[0], tokenizer.encode([text])[0].ids[:16].tolist()
        special = 4 if name == "roberta" else 3
        spans, anywhere = one_by_one(q, whole.ids, length - special - len(q), stride), False
        begin_char, end_char = questions.spans[n]
        inner = [
            t for t, (a, b) in enumerate(whole.offsets) if max(a, begin_char) < min(b, end_char)
        ]
        for begin, size in spans:
            assert (windows.question[w], windows.begin[w], windows.size[w]) == (n, begin, size)
            c = whole.ids[begin : begin + size].tolist()
            if name == "xlnet":
                tokens, null, first = c + sep + q + sep + cls, size + len(q) + 2, 0
                segments = [0] * (size + 1) + [1] * (len(q) + 1) + [2]
            else:
                between = sep + sep if name == "roberta" else sep
                tokens, null = cls + q + between + c + sep, 0
                first = 1 + len(q) + len(between)
                segments = [0] * first + [1] * (size + 1)
            assert windows.null[w] == null and windows.first[w] == first
            if begin % 3 == 0:
                assert row(windows, w) == (tokens, segments)
            inside = inner[0] >= begin and inner[-1] < begin + size
            wanted = [first + inner[0] - begin, first + inner[-1] - begin] if inside else [null] * 2
            assert windows.targets[w].tolist() == wanted
            anywhere |= inside
            w += 1
        held += anywhere
    assert w == len(windows) and held == windows.held
    part = windows.contexts[0]
    size = len(tokenizer.encode([questions.contexts[questions.context[0]]])[0].ids)
    np.testing.assert_array_equal(
        windows.spans[part : part + size],
        tokenizer.encode([questions.contexts[questions.context[0]]])[0].offsets,
    )


def test_targets_are_the_tokens_of_the_answer(tmp_path, small):
    questions = read_squad(write(tmp_path / "a.json", towns(unanswerable=True)))
    windows = laid_out(questions, small, length=40)
    assert windows.held == 10
    for w, n in enumerate(windows.question):
        begin, end = windows.targets[w] - windows.first[w] + windows.begin[w] + windows.contexts[n]
        context = questions.contexts[questions.context[n]]
        if questions.answers[n]:
            found = context[windows.spans[begin, 0] : windows.spans[end, 1]]
            assert found == questions.answers[n][0]
        else:
            assert windows.targets[w].tolist() == [0, 0]


def test_an_answer_within_a_word_is_that_word(tmp_path, small):
    """As BERT has it: the smallest span of tokens that covers the answer."""
    context = "In 2004 Ida lived in Bern by the sea."
    path = write(tmp_path / "a.json", squad((context, [asked("1", "When?", context, "00")])))
    windows = laid_out(read_squad(path), small)
    begin, end = windows.targets[0] - windows.first[0]
    found = context[windows.spans[begin, 0] : windows.spans[end, 1]]
    assert "00" in found and found in "2004"


def test_an_answer_that_the_tokenizer_drops(tmp_path, small):
    context = "Ann \u200b lived."
    path = write(tmp_path / "a.json", squad((context, [asked("1", "What?", context, "\u200b")])))
    windows = laid_out(read_squad(path), small)
    assert windows.targets.tolist() == [[0, 0]] and windows.held == 0


def test_batches_have_targets_and_padding_rows_none(tmp_path, small):
    questions = read_squad(write(tmp_path / "a.json", towns()))
    view = AnswerBuckets(laid_out(questions, small, length=40), seed=1)
    batch = view.batch(0, 16)
    assert set(batch) == set(view.fields) and batch["starts"].dtype == np.int32
    real = batch["weight"] > 0
    assert real.sum() == 10 and not batch["starts"][~real].any()
    assert (batch["starts"][real] <= batch["ends"][real]).all() and batch["starts"][real].all()
    windows = laid_out(questions, small, length=40)
    np.testing.assert_array_equal(
        np.stack([batch["starts"], batch["ends"]], 1)[real], windows.targets[batch["example"][real]]
    )
    again = AnswerBuckets(laid_out(questions, small, length=40), seed=1).batch(0, 16)
    np.testing.assert_array_equal(batch["starts"], again["starts"])
    bare = read_squad(
        write(
            tmp_path / "b.json",
            json.loads(re.sub(r', "answers": \[[^]]*\]', "", json.dumps(towns()))),
        )
    )
    assert "starts" not in AnswerBuckets(laid_out(bare, small, length=40)).batch(0, 2)


def test_long_questions_are_cut_and_counted(tmp_path, small):
    context = "Ann lived in Oslo."
    qas = [asked("1", "Ann " * 30, context, "Oslo"), asked("2", "Oslo?", context, "Oslo")]
    questions = read_squad(write(tmp_path / "a.json", squad((context, qas))))
    windows = laid_out(questions, small, question_length=5, length=32)
    assert windows.cut == 1 and windows.first.max() == 7
    with pytest.raises(FirthError, match=r"question '1' leaves no room .* data\.length=32"):
        laid_out(questions, small, question_length=29, length=32)
    with pytest.raises(FirthError, match=r"data\.stride=0: expected a positive number"):
        laid_out(questions, small, stride=0)


def test_an_empty_context_has_one_window(tmp_path, small):
    path = write(tmp_path / "a.json", squad(("", [asked("1", "Where?", "")])))
    windows = laid_out(read_squad(path), small)
    assert len(windows) == 1 and windows.size.tolist() == [0]
    assert windows.targets.tolist() == [[0, 0]]


def test_who_shows_a_token_best():
    """Against BERT's loop over all windows of a token."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        total, room, stride = rng.integers(1, 60), rng.integers(1, 30), rng.integers(1, 30)
        spans = one_by_one(None, range(total), room, min(stride, room))
        begins, sizes = np.array(spans).T
        found = max_context(begins, sizes)
        for token in range(total):
            scores = [
                (min(token - b, b + s - 1 - token) + 0.01 * s, -w)
                for w, (b, s) in enumerate(spans)
                if b <= token < b + s
            ]
            best = -max(scores)[1]
            for w, (b, s) in enumerate(spans):
                if b <= token < b + s:
                    assert found[w][token - b] == (w == best)
