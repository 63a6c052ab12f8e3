"""What a report says of a model's errors: against scikit-learn, the model itself, and by hand."""

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from helpers.questions import asked, squad, write
from sklearn.metrics import confusion_matrix

from firth import recipe
from firth.data.answering.files import read_squad
from firth.data.tagging.files import read_sentences
from firth.data.tasks.load import get_task, load_split
from firth.errors import FirthError
from firth.inference.answering.answerer import Answerer
from firth.inference.judging.answers import judge_answers
from firth.inference.judging.judged import calibrate
from firth.inference.judging.kinds import judge
from firth.inference.judging.texts import judge_texts, outputs_of, shown_texts, texts_of, words_of
from firth.inference.judging.words import confused, of_tags
from firth.inference.predictions import classifier as classifier_module

WORDS = ("the", "cat", "sat", "dog", "ran", "mat")


def config_of(folder, rows, name="finetune.py", kind="csv", **fields):
    """A config whose train and dev files have these lines."""
    for split in ("train", "dev"):
        (folder / f"{split}.{kind}").write_text("\n".join(rows) + "\n")
        fields[f"data.{split}"] = str(folder / f"{split}.{kind}")
    return recipe.with_fields(recipe.read_recipe(name), fields)


def test_calibration_is_the_mean_distance_of_sureness_from_being_right():
    """Ten bins; 1.0 is in the last. The error is that of a loop over examples and bins."""
    rng = np.random.default_rng(0)
    sure = np.concatenate([rng.uniform(0.3, 1, 200), [1.0, 0.3]])
    right = rng.random(202) < sure**2
    found, error = calibrate(sure, right), 0.0
    for i in range(10):
        own = [n for n, p in enumerate(sure) if i / 10 <= p < (i + 1) / 10 or (i == 9 and p == 1)]
        assert found.counts[i] == len(own)
        if own:
            assert found.confidence[i] == pytest.approx(sure[own].mean())
            assert found.accuracy[i] == pytest.approx(right[own].mean())
            error += len(own) / 202 * abs(sure[own].mean() - right[own].mean())
        else:
            assert np.isnan(found.confidence[i])
    assert found.error == pytest.approx(error) and error > 0.05


def test_a_classifier_on_its_dev_file(labelled, tmp_path, monkeypatch):
    """Its worst errors are those whose right label is least likely; what is right is none."""
    monkeypatch.setattr(classifier_module, "SORTED_BATCHES", 1)
    rng, names = np.random.default_rng(0), labelled.encoder.classifier.labels
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(70)]
    gold = rng.integers(3, size=70)
    rows = [f'{text},"{names[n]}"' for text, n in zip(texts, gold, strict=True)]
    found = judge_texts(labelled.folder, config_of(tmp_path, ["text,label", *rows]), "dev", 4)
    predictions = labelled.encoder.predict(texts)
    said = np.array([names.index(one.label) for one in predictions])
    np.testing.assert_array_equal(found.confusion, confusion_matrix(gold, said, labels=range(3)))
    assert (found.examples, found.labels, found.split) == (70, names, "dev")
    assert found.metrics["accuracy"] == pytest.approx((gold == said).mean())
    np.testing.assert_array_equal(found.score, gold == said)
    assert found.words.tolist() == [len(text.split()) for text in texts]
    likeliest = [one.probability for one in predictions]
    np.testing.assert_array_equal(found.calibration.counts, np.histogram(likeliest, 10, (0, 1))[0])
    assert found.calibration.counts.sum() == 70 and found.wrong == (gold != said).sum()
    sure = [one.probabilities[names[n]] for one, n in zip(predictions, gold, strict=True)]
    worst = sorted(np.flatnonzero(gold != said), key=lambda i: sure[i])[:4]
    for one, i in zip(found.worst, worst, strict=True):
        assert one.texts == {"text": texts[i]}
        assert (one.gold, one.predicted) == (names[gold[i]], names[said[i]])
        assert one.how.startswith(f"right: {sure[i]:.1%}")


def test_a_regression_on_its_dev_file(scored, tmp_path):
    rows = [f"{' '.join(WORDS[:n])},{n - 3.5}" for n in range(1, 7)]
    rows[0] = f"{WORDS[0]},-9.5"  # the worst: what the model says is far above
    rows[1] = f"{WORDS[0]} {WORDS[1]},9"  # and far below
    config = config_of(tmp_path, ["text,score", *rows])
    found = judge_texts(scored.folder, config, "dev", 2)
    said = [one.score for one in scored.encoder.predict([row.split(",")[0] for row in rows])]
    np.testing.assert_allclose(found.scores[:, 1], said, rtol=1e-5)
    np.testing.assert_allclose(found.scores[:, 0], [-9.5, 9, -0.5, 0.5, 1.5, 2.5])
    off = np.abs(found.scores[:, 1] - found.scores[:, 0])
    assert {one.texts["text"] for one in found.worst} == {"the", "the cat"}
    assert found.worst[0].texts["text"] == rows[off.argmax()].split(",")[0]
    assert len(found.worst) == 2 and found.calibration is None and found.confusion is None
    assert found.metrics["mae"] == pytest.approx(off.mean())


def test_texts_of_pairs_and_of_choices(tmp_path):
    (tmp_path / "p.csv").write_text("text1,text2,label\na b,c,x\nd,e f g,y\n")
    task = get_task("custom", train=str(tmp_path / "p.csv"), dev=str(tmp_path / "p.csv"))
    pairs = load_split(task, "train")
    assert texts_of(pairs) == [("a b", "c"), ("d", "e f g")] and words_of(pairs).tolist() == [3, 4]
    assert shown_texts(pairs, 1) == {"first": "d", "second": "e f g"}
    rows = "question,choice0,choice1,label\nq,a b,c,0\nr s,d,e,1\n"
    (tmp_path / "c.csv").write_text(rows)
    chosen = load_split(get_task("custom", train=str(tmp_path / "c.csv")), "train")
    assert [texts[0] for texts in texts_of(chosen)] == ["q", "r s"]
    assert words_of(chosen).tolist() == [4, 4]
    assert list(shown_texts(chosen, 0).values()) == ["q", "a b", "c"]


def test_outputs_of_many_texts_are_in_their_order(labelled, monkeypatch):
    monkeypatch.setattr("firth.inference.judging.texts.SORTED_BATCHES", 1)
    texts = [" ".join(WORDS[: n % 6 + 1]) for n in range(75)]
    found = outputs_of(labelled.encoder.classifier, texts)
    names = labelled.encoder.classifier.labels
    expected = [[one.probabilities[n] for n in names] for one in labelled.encoder.predict(texts)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_sentences_and_their_tags(tmp_path):
    (tmp_path / "a.bio").write_text("a B-X\nb O\nc O\n\nd O\n\ne B-Y\nf O\n")
    said = [["B-X", "O", "B-X"], ["O"], ["O", "B-Y"]]
    labels = ("O", "B-X", "B-Y")
    found = of_tags("dev", labels, read_sentences(tmp_path / "a.bio"), said, 1)
    assert found.words.tolist() == [3, 1, 2] and found.wrong == 2
    np.testing.assert_allclose(found.score, [2 / 3, 1, 0])
    (worst,) = found.worst  # the sentence with the most wrong words
    assert worst.texts == {"sentence": "e f"} and worst.how == "2 of 2 words"
    assert (worst.gold, worst.predicted) == ("e/B-Y, f/O", "e/O, f/B-Y")
    assert found.labels == ("B-X", "B-Y", "O")
    assert found.confusion.tolist() == [[1, 0, 0], [0, 0, 1], [1, 1, 2]]
    assert found.by_label["Y"]["f1"] == 0


def test_of_many_tags_those_with_errors_are_shown():
    gold = [[f"t{n:02d}" for n in range(28) for _ in range(5)] + ["t28", "t29"]]
    said = [[*gold[0][:-2], "t29", "t28"]]
    labels, counts = confused(gold, said)
    assert len(labels) == 20 and {"t28", "t29"} <= set(labels)
    assert counts.sum() == 18 * 5 + 2 and counts[-2:, -2:].tolist() == [[0, 1], [1, 0]]


def test_answers_to_questions(tmp_path):
    make_bert(tmp_path / "m", "BertForQuestionAnswering")
    add_tokenizer(tmp_path / "m")
    text = "the cat sat on the mat. the dog ate fish and ran."
    model = Answerer(str(tmp_path / "m"))
    own = write(tmp_path / "own.json", squad((text, [asked("1", "dog", text, "fish")])))
    said = model(read_squad(own))[0].answer(None).text
    qas = [asked("1", "dog", text, said), asked("2", "dog", text, "fish")]
    file = write(tmp_path / "q.json", squad((text, qas)))
    fields = {f"data.{split}": str(file) for split in ("train", "dev")}
    config = recipe.with_fields(recipe.read_recipe("squad.py:v1,init=minilm"), fields)
    found = judge_answers(tmp_path / "m", config, "dev", 5)
    assert found.score[0] == 1 and found.examples == 2 and found.words.tolist() == [12, 12]
    (worst,) = found.worst
    assert worst.texts == {"question": "dog", "text": text} and found.score[1] < 1
    assert (worst.gold, worst.predicted) == ("fish", said)
    assert found.metrics["f1"] == pytest.approx(found.score.mean())
    with pytest.raises(FirthError, match="no answers to split 'test'"):
        judge_answers(tmp_path / "m", config, "test", 5)


def test_a_split_without_labels_is_named(labelled, tmp_path):
    config = config_of(tmp_path, ["text,label", "a,bad", "b,good"])
    with pytest.raises(FirthError, match=r"no labelled split 'test'; it has train, dev"):
        judge_texts(labelled.folder, config, "test", 1)


def test_a_run_that_learns_no_labels_is_judged_by_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"data": {"store": "x"}}')
    assert judge(tmp_path, "dev", 3) is None
