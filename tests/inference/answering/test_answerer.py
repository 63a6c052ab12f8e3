"""A model that answers questions: its commands, their files, and answers as the model's logits."""

import json

import numpy as np
import pytest
from helpers.interrupts import stopping
from helpers.published.bert import add_tokenizer, make_bert
from helpers.questions import asked, squad, write

from firth import recipe
from firth.cli import main
from firth.data.answering.files import read_squad
from firth.data.answering.metrics import score_answers
from firth.errors import FirthError
from firth.inference.answering.answerer import WINDOW, Answerer, is_answerer
from firth.storage.local import write_json
from firth.weights.read import read_model
from firth.weights.write import write_firth

TEXT = "the cat sat on the mat. the dog ate fish and ran, and the cat ate food."


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A published model with random weights and its tokenizer."""
    folder = tmp_path_factory.mktemp("published") / "m"
    make_bert(folder, "BertForQuestionAnswering")
    add_tokenizer(folder)
    return folder


@pytest.fixture
def questions(tmp_path):
    qas = [asked("1", "the cat ate?", TEXT, "food"), asked("2", "dog", TEXT, "fish")]
    qas.append(asked("3", "who ran?", TEXT))
    return write(tmp_path / "q.json", squad((TEXT, qas), ("a fish.", [asked("4", "a", "a fish.")])))


def test_what_answers_questions(model, tmp_path):
    write_firth(tmp_path / "firth", read_model(model))
    make_bert(tmp_path / "other")
    assert is_answerer(model) and is_answerer(tmp_path / "firth")
    assert not is_answerer(tmp_path / "other") and not is_answerer(tmp_path / "nowhere")
    assert not is_answerer("minilm") and not is_answerer(f"{model},{model}")
    add_tokenizer(tmp_path / "other")
    with pytest.raises(
        FirthError, match=r"answers no questions; train it first: .* squad\.py:init"
    ):
        Answerer(tmp_path / "other")


def test_answers_are_those_of_transformers_logits(torch, model, questions):
    """One window a question: the best pair of a begin and an end within the text."""
    import transformers

    theirs = transformers.BertForQuestionAnswering.from_pretrained(model)
    tokenizer = transformers.BertTokenizerFast.from_pretrained(model)
    asked_, ours = read_squad(questions), Answerer(model)
    assert (ours.length, ours.stride, ours.longest, ours.threshold) == (40, 128, 30, None)
    found = ours(asked_, batch_size=3)
    for n, one in enumerate(found):
        context = asked_.contexts[asked_.context[n]]
        encoded = tokenizer(
            asked_.texts[n], context, return_tensors="pt", return_offsets_mapping=True
        )
        places = encoded.pop("offset_mapping")[0].tolist()
        inner = [i for i, s in enumerate(encoded.sequence_ids(0)) if s == 1]
        with torch.no_grad():
            out = theirs(**encoded)
        begin, end = out.start_logits[0].numpy(), out.end_logits[0].numpy()
        score, i, j = max((begin[i] + end[j], i, j) for i in inner for j in inner if i <= j)
        assert one.best[0].text == context[places[i][0] : places[j][1]]
        assert one.best[0].score == pytest.approx(float(score), abs=1e-4)
        assert one.null.score == pytest.approx(float(begin[0] + end[0]), abs=1e-4)


def test_windows_and_parts_do_not_change_answers(model, tmp_path, monkeypatch):
    qas = [asked(str(n), "the cat"[: n + 1], TEXT, "food") for n in range(7)]
    questions = read_squad(write(tmp_path / "a.json", squad((TEXT, qas), ("a fish.", []))))
    ours = Answerer(model)
    whole = ours(questions, length=20, stride=5)
    assert WINDOW == 512
    monkeypatch.setattr("firth.inference.answering.answerer.WINDOW", 3)
    parts = [one for _, found in ours.in_parts(questions, length=20, stride=5) for one in found]
    assert [one.best[0].text for one in parts] == [one.best[0].text for one in whole]
    few = ours(questions, length=20, stride=5, best=1, batch_size=2)
    assert [len(one.best) for one in few] == [1] * 7
    np.testing.assert_allclose(
        [one.null_odds for one in few], [one.null_odds for one in whole], atol=1e-4
    )


def run(*argv):
    assert main(list(map(str, argv))) == 0


def test_several_models_that_answer_have_no_mean(model, questions, capsys):
    more = {"predict": [f"--input={questions}", "--output=a.json"]}
    more["evaluate"] = [f"--data={questions}"]
    for verb, options in more.items():
        assert main([verb, f"--model={model},{model}", *options]) == 2
        said = capsys.readouterr().err
        assert f"{model} answers by spans, and the mean of several models is of those alone" in said


def test_files_of_predictions(model, questions, tmp_path, capsys):
    ours, asked_ = Answerer(model), read_squad(questions)
    options = ["predict", "--model", model, "--input", questions, "--output"]
    run(*options, tmp_path / "a.json")
    best = {n: one.best[0].text for n, one in zip(asked_.ids, ours(asked_), strict=True)}
    assert json.loads((tmp_path / "a.json").read_text()) == best
    assert not (tmp_path / "nbest_a.json").exists()  # which nobody asked for
    run(*options, tmp_path / "b.json", "--nbest", 3, "--null-threshold=-1e6")
    assert set(json.loads((tmp_path / "b.json").read_text()).values()) == {""}
    nbest = json.loads((tmp_path / "nbest_b.json").read_text())
    odds = json.loads((tmp_path / "null_odds_b.json").read_text())
    assert set(nbest) == set(odds) == set(best)
    assert {len(found) for found in nbest.values()} == {4}  # three, and no answer
    assert capsys.readouterr().out.splitlines()[-1].endswith("null_odds_b.json: 4 questions")
    run(*options, tmp_path / "c.jsonl", "--nbest=2", "--null-threshold=0")
    lines = list(map(json.loads, (tmp_path / "c.jsonl").read_text().splitlines()))
    for line in lines:
        assert (line["answer"] == "") == (line["null_odds"] > 0) == (line["begin"] == -1)
        assert len(line["nbest"]) == 3 and line["id"] in best  # two, and no answer
    assert main([*map(str, options), str(tmp_path / "c.jsonl")]) == 2  # it is there


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_answers_go_on_to_the_same_bytes(model, questions, tmp_path, monkeypatch, name, capsys):
    monkeypatch.setattr("firth.inference.answering.answerer.WINDOW", 1)
    argv = list(map(str, ["predict", "--model", model, "--input", questions, "--nbest=3"]))
    argv.append("--null-threshold=0")
    (tmp_path / "whole").mkdir()
    run(*argv, "--output", tmp_path / "whole" / name)
    argv += ["--output", str(tmp_path / name)]
    with stopping(Answerer, "__call__", after=2):
        assert main(argv) == 130
    assert not (tmp_path / name).exists()
    assert len((tmp_path / f"{name}.partial").read_text().splitlines()) == 2
    capsys.readouterr()
    text = questions.read_text()
    questions.write_text(text.replace("the cat sat", "the dog sat"))  # another context
    assert main(argv) == 2 and "2 rows of another input" in capsys.readouterr().err
    questions.write_text(text)
    assert main([*argv, "--null-threshold=1"]) == 2
    assert "has threshold=0.0, not 1.0" in capsys.readouterr().err
    with stopping(Answerer, "__call__", after=2):  # all that are left
        assert main(argv) == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert len(whole) == (3 if name == "a.json" else 1)
    assert whole == {other: (tmp_path / other).read_bytes() for other in whole}
    assert not list(tmp_path.glob("*.partial*"))


def test_lines_of_questions_come_and_go(model, tmp_path, capsysbinary):
    rows = [{"question": "the cat ate?", "context": TEXT}, {"question": "a", "context": "a fish."}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("predict", "--model", model, "--input", tmp_path / "q.jsonl", "--output", "-")
    lines = list(map(json.loads, capsysbinary.readouterr().out.splitlines()))
    assert [line["id"] for line in lines] == ["1", "2"] and "null_odds" not in lines[0]
    for line, row in zip(lines, rows, strict=True):
        assert row["context"][line["begin"] : line["end"]] == line["answer"] != ""
        assert set(line) == {"id", "question", "answer", "begin", "end", "score"}


def test_a_file_is_measured(model, questions, tmp_path, capsys):
    ours, asked_ = Answerer(model), read_squad(questions)
    found = ours(asked_)
    argv = ["evaluate", "--model", model, "--data", questions, "--output", tmp_path / "p.json"]
    run(*argv, "--json")
    whole = json.loads(capsys.readouterr().out)
    best = {n: one.best[0].text for n, one in zip(asked_.ids, found, strict=True)}
    odds = {n: one.null_odds for n, one in zip(asked_.ids, found, strict=True)}
    assert whole["metrics"] == pytest.approx(score_answers(asked_, best, odds))
    assert (whole["questions"], whole["answerable"], whole["null_threshold"]) == (4, 2, 0.0)
    run(*argv, "--null-threshold=1e6")
    text = capsys.readouterr().out
    assert "4 questions, 2 with an answer, no answer where its odds are above 1e+06" in text
    assert len(text.splitlines()) == 12 and "\nunanswerable_f1  " in text
    assert json.loads((tmp_path / "p.json").read_text()) == best
    qas = [asked("1", "the cat ate?", TEXT, "food")]
    write(tmp_path / "one.json", squad((TEXT, qas)))
    run("evaluate", "--model", model, "--data", tmp_path / "one.json", "--json")
    assert set(json.loads(capsys.readouterr().out)["metrics"]) == {"f1", "exact"}


def test_a_workdir_says_how_it_reads_and_its_best_threshold(model, tmp_path, monkeypatch):
    """That of dev at the step of the weights, else the recipe's."""
    import dataclasses

    write_firth(tmp_path / "w", read_model(model))
    saved = dataclasses.replace(
        read_model(tmp_path / "w"), layout="workdir", source=tmp_path / "w", step=5
    )
    config = recipe.with_fields(
        recipe.read_recipe("squad.py:v2,length=24"),
        {"data.stride": 7, "data.question_length": 9, "objective.max_answer": 4},
    )
    write_json(tmp_path / "w" / "config.json", json.loads(config.to_json_best_effort()))
    monkeypatch.setattr("firth.inference.encoder.read_model", lambda source: saved)
    ours = Answerer(tmp_path / "w")
    assert (ours.length, ours.stride, ours.question_length, ours.longest) == (24, 7, 9, 4)
    assert ours.threshold == 0.0
    lines = [{"step": 5, "eval/dev/best_f1_threshold": -2.5}]
    lines.append({"step": 9, "eval/dev/best_f1_threshold": 4.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "w" / "metrics.jsonl").write_text(text)
    # It is the odds of a question, which must stay below it when they are computed again.
    assert Answerer(tmp_path / "w").threshold == -2.5 + 1e-3
