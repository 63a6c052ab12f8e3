"""`encoder.predict` against transformers' own pipeline."""

import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert

import firth
from firth.data.tasks.rows import Row
from firth.errors import FirthError
from firth.inference.encoder import Encoder
from firth.inference.predictions import classifier as module
from firth.inference.predictions.classifier import Classifier, Prediction, predict_rows
from firth.inference.predictions.reading import Reading

LABELS = ("bad", "good", "so, so")
LONG = "the cat sat on the mat and the dog ate the fish . " * 5


def expected(model, texts, **options):
    """{label: probability} of each text by transformers, one text at a time."""
    outputs = [model.pipeline([text], **options)[0] for text in texts]
    return [{one["label"]: one["score"] for one in output} for output in outputs]


def close(predictions, theirs):
    for ours, other in zip(predictions, theirs, strict=True):
        assert ours.probabilities == pytest.approx(other, abs=1e-5)
        assert ours.label == max(other, key=other.get)
        assert ours.probability == ours.probabilities[ours.label]


def test_labels_and_probabilities_are_those_of_transformers(labelled, texts):
    close(labelled.encoder.predict(texts), expected(labelled, texts))


def test_pairs_are_those_of_transformers(labelled, texts):
    pairs = [*zip(texts[:8], reversed(texts[:8]), strict=True), (LONG, "fish"), ("fish", LONG)]
    theirs = expected(labelled, [{"text": a, "text_pair": b} for a, b in pairs])
    close(labelled.encoder.predict(pairs), theirs)
    assert len(labelled.encoder.predict(pairs[0])) == 1


def test_scores_are_those_of_transformers(scored, texts):
    ours = scored.encoder.predict(texts[:9])
    theirs = [scored.pipeline([text])[0][0]["score"] for text in texts[:9]]
    np.testing.assert_allclose([one.score for one in ours], theirs, atol=1e-5)
    assert {(one.label, one.probability, one.probabilities) for one in ours} == {(None,) * 3}


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_every_batch_size_gives_the_same(labelled, texts, monkeypatch, batch_size):
    """Padding, the other texts of a batch and the rows that fill it change nothing."""
    monkeypatch.setattr(module, "SORTED_BATCHES", 2)  # several windows
    alone = [labelled.encoder.predict(text)[0].probabilities for text in texts]
    together = labelled.encoder.predict(texts, batch_size=batch_size)
    close(together, alone)


def test_few_shapes_are_compiled(labelled, texts):
    classifier = Classifier(firth.load(labelled.encoder.saved.source))
    for some in (texts, texts[:29], texts[:20]):
        classifier(some, Reading(batch_size=4))
    program = classifier._logits
    assert program.made + program.read <= 4  # 16 and 32 tokens, and a last batch of 1 or 2


def test_rows_are_drawn_as_they_are_predicted(labelled):
    """So that memory does not grow with their number: never more than a window is held."""
    drawn, done = 0, 0

    def endless():
        nonlocal drawn
        for drawn in range(1, 101):
            yield Row(f"line {drawn}", {}, "the cat")

    reading = Reading(batch_size=4)
    for rows, outputs, cut in predict_rows(labelled.encoder.classifier, endless(), reading, 2):
        done += len(rows)
        assert drawn == done and len(outputs) == len(rows) <= 8 and not cut
    assert done == 100


def test_a_long_text_is_cut_with_a_warning(labelled, caplog):
    with caplog.at_level(logging.WARNING):
        cut = labelled.encoder.predict([LONG, "fish", LONG])
    close(cut, expected(labelled, [LONG, "fish", LONG]))
    said = "2 of 3 texts have more than 40 tokens and were cut; long=average reads all of a text"
    assert caplog.messages == [said]
    caplog.clear()
    short = labelled.encoder.predict([LONG], max_length=9)
    close(short, expected(labelled, [LONG], max_length=9))
    assert "more than 9 tokens and were cut; max_length=40 keeps more; long" in caplog.text


def test_the_first_text_without_a_token_is_named(labelled, caplog):
    classifier, rows = Classifier(labelled.encoder), [Row("a.csv:2", {}, "fish")]
    rows += [Row("a.csv:3", {}, ("cat", "\u200b")), Row("a.csv:4", {}, ""), Row("a.csv:5", {}, "")]
    with caplog.at_level(logging.WARNING):
        parts = list(predict_rows(classifier, rows, Reading(batch_size=1), batches=2))
    assert sum(len(outputs_NC) for _, outputs_NC, _ in parts) == 4
    (said,) = caplog.messages
    assert said.startswith("a.csv:3: no token in a text; it is labelled all the same")


def test_windows_are_averaged(labelled, scored, caplog):
    """Against the mean of the windows' own predictions, cut by hand: whole words are tokens."""
    words = LONG.split()  # 65 words, rows of 40: 38 words a window
    begins = (0, 10, 20, 27)
    windows = [" ".join(words[begin : begin + 38]) for begin in begins]
    read = dict(long="average", stride=10)
    mean = {}
    for one in labelled.encoder.predict(windows):
        for label, p in one.probabilities.items():
            mean[label] = mean.get(label, 0) + p / len(begins)
    close(labelled.encoder.predict([LONG, "fish"], **read), [mean, *expected(labelled, ["fish"])])
    mean = np.mean([one.score for one in scored.encoder.predict(windows)])
    assert scored.encoder.predict(LONG, **read)[0].score == pytest.approx(mean, abs=1e-5)
    assert not caplog.messages  # no token is lost


def test_a_workdir_is_read_as_it_was_trained(torch, labelled, tmp_path, caplog):
    """By its length, and in both orders where the run's objective adds them."""
    fields = {"data": {"length": 20}, "objective": {"both_orders": True}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    saved = dataclasses.replace(labelled.encoder.saved, layout="workdir", source=tmp_path)
    pair = ("the cat sat", "a dog")
    model, tokenizer = labelled.pipeline.model, labelled.pipeline.tokenizer
    with torch.no_grad():
        orders = [tokenizer(*texts, return_tensors="pt") for texts in (pair, pair[::-1])]
        pooled = sum(model.bert(**batch).pooler_output for batch in orders)
        p = torch.softmax(model.classifier(pooled)[0], 0).tolist()
    encoder = Encoder(saved)
    close(encoder.predict(pair), [dict(zip(LABELS, p, strict=True))])
    encoder.predict(LONG)
    assert "more than 20 tokens and were cut; max_length=40 keeps more" in caplog.text


def test_the_likeliest_come_first_and_top_leaves_out_the_rest(labelled):
    (whole,) = labelled.encoder.predict("the cat")
    values = list(whole.probabilities.values())
    assert values == sorted(values, reverse=True) and sum(values) == pytest.approx(1)
    (two,) = labelled.encoder.predict("the cat", top=2)
    assert list(two.probabilities.items()) == list(whole.probabilities.items())[:2]
    assert labelled.encoder.predict("the cat", top=4) == [whole]
    assert repr(whole) == f"Prediction({whole.label!r}, {whole.probability:.4f})"
    assert repr(Prediction(score=2.0)) == "Prediction(score=2.0000)"
    assert labelled.encoder.predict([]) == []


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["a", 3], {}, "text 1 is 3, expected a string or two of them"),
        ([("a", "b", "c")], {}, "text 0 is "),
        ([("a", None)], {}, "text 0 is "),
        (["a"], {"top": 0}, "top=0: expected a positive number"),
        (["a"], {"max_length": 41}, r"max_length=41 is outside 3 \.\. 40"),
        (["a", ("a", "b")], {"max_length": 4}, r"max_length=4 is outside 5 \.\. 40"),
        (["a"], {"batch_size": 0}, "batch_size=0: expected a positive number"),
        (["a"], {"long": "cut"}, "long='cut' is unknown; choose truncate or average"),
        (["a"], {"stride": 3}, "stride is that of windows; it needs long=average"),
    ],
)
def test_bad_calls_are_named(labelled, texts, options, message):
    with pytest.raises(FirthError, match=message):
        labelled.encoder.predict(texts, **options)


def test_a_model_that_labels_no_text_is_refused(labelled, torch, tmp_path):
    make_bert(tmp_path / "mlm", "BertForMaskedLM")
    add_tokenizer(tmp_path / "mlm")
    message = r"mlm has no classifier \(its heads: mlm\); fine-tune it first: firth train --config "
    with pytest.raises(FirthError, match=message + r"finetune.py:init=\S+mlm --config.data.train="):
        firth.load(tmp_path / "mlm").predict("a")
    with pytest.raises(FirthError, match="loaded without its head 'classifier'"):
        firth.load(labelled.folder, heads=False).predict("a")

    def changed(name, **fields):
        shutil.copytree(labelled.folder, tmp_path / name)
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return firth.load(tmp_path / name)

    with pytest.raises(FirthError, match="gives a text 3 numbers, expected one"):
        changed("numbers", problem_type="regression").predict("a")
    with pytest.raises(FirthError, match="two labels of the same name: a, b, a"):
        changed("twice", id2label={"0": "a", "1": "b", "2": "a"}).predict("a")
    plain = changed("plain", id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"})
    assert set(plain.predict("a")[0].probabilities) == {"LABEL_0", "LABEL_1", "LABEL_2"}
    for file in ("tokenizer.json", "vocab.txt"):
        (tmp_path / "plain" / file).unlink(missing_ok=True)
    with pytest.raises(FirthError, match="holds no tokenizer, which texts need"):
        firth.load(tmp_path / "plain").predict("a")


def test_a_diverged_model_is_named(labelled):
    encoder = firth.load(labelled.folder)
    encoder.params["classifier"]["dense"]["bias"] = np.full(3, np.nan, np.float32)
    with pytest.raises(FirthError, match=r"text 0: what \S+ gives is not finite; the model has"):
        encoder.predict("a")
