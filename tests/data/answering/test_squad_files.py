"""Files of questions: what is read of them, and what is said of one that is malformed."""

import gzip
import json
import lzma

import numpy as np
import pytest
from helpers.questions import asked, squad, towns, write

from firth.data.answering.files import NONE, read_pairs, read_squad
from firth.data.answering.load import baselines, load_answering, overview
from firth.errors import FirthError

CONTEXT = "Ann lived in Oslo, then in Rome."
SOME = asked("1", "Where?", CONTEXT, "Oslo", "in Rome")


def test_questions_with_their_contexts_and_places(tmp_path):
    other = "Nobody lives here."
    qas = [asked("b", "Who?", other), asked("c", "Where?", other, "here")]
    found = read_squad(write(tmp_path / "a.json", squad((CONTEXT, [SOME]), (other, qas))))
    assert found.contexts == [CONTEXT, other] and found.ids == ["1", "b", "c"]
    assert found.context.tolist() == [0, 1, 1] and found.texts == ["Where?", "Who?", "Where?"]
    assert found.answers == [("Oslo", "in Rome"), (), ("here",)]
    assert found.spans.tolist() == [[13, 17], list(NONE), [13, 17]] and found.skipped == ()
    part = found.part(1, 3)
    assert (part.contexts, part.ids, part.context.tolist()) == ([other], ["b", "c"], [0, 0])
    assert part.answers == [(), ("here",)] and part.spans.tolist() == [list(NONE), [13, 17]]


def test_packed_files_and_marks_of_bytes(tmp_path):
    text = "\ufeff" + json.dumps(towns(), indent=1)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.json.xz").write_bytes(lzma.compress(text.encode()))
    first, second = read_squad(tmp_path / "a.json.gz"), read_squad(tmp_path / "b.json.xz")
    assert len(first) == 10 and first.texts == second.texts


def test_answers_that_are_not_at_their_place(tmp_path):
    wrong = {"id": "2", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 1}]}
    before = {"id": "3", "question": "Who?", "answers": [{"text": "Ann", "answer_start": -1}]}
    path = write(tmp_path / "a.json", squad((CONTEXT, [SOME, wrong, before])))
    with pytest.raises(FirthError, match=r"question '2': answer 'Ann' is not at 1, .* 'nn '"):
        read_squad(path)
    found = read_squad(path, misplaced="skip")
    assert found.ids == ["1"] and found.skipped == ("2", "3")
    assert read_squad(path, places=False).answers[1] == ("Ann",)  # scores need no places
    with pytest.raises(FirthError, match=r"misplaced='no'; expected one of refuse, skip"):
        read_squad(path, misplaced="no")
    path = write(tmp_path / "b.json", squad((CONTEXT, [wrong])))
    with pytest.raises(FirthError, match=r"has no questions; 1 were left out"):
        read_squad(path, misplaced="skip")


def test_questions_without_answers(tmp_path):
    path = write(tmp_path / "a.json", squad((CONTEXT, [SOME, asked("2", "Who?", CONTEXT)])))
    assert read_squad(path).answers[1] == ()
    with pytest.raises(FirthError, match=r"question '2' has no answer, .* squad\.py:v2"):
        read_squad(path, unanswerable=False)
    new = {"id": 7, "question": "Why?"}
    test = read_squad(write(tmp_path / "b.json", squad((CONTEXT, [new]))), unanswerable=False)
    assert test.answers is None and test.spans is None and test.ids == ["7"]
    assert test.part(0, 1).answers is None


@pytest.mark.parametrize(
    ("qas", "said"),
    [
        ([SOME, SOME], "question id '1' comes twice"),
        ([SOME, {"id": "2", "question": "Who?"}], "'2' has no field 'answers', but others have"),
        ([SOME | {"is_impossible": True}], "is_impossible is true, but it has answers"),
        ([SOME | {"answers": [{"text": " ", "answer_start": 3}]}], r"answers\[0\] is empty"),
        ([SOME | {"answers": [{"text": "Oslo"}]}], r"answers\[0\] has no field 'answer_start'"),
        ([SOME | {"answers": "Oslo"}], "question '1': answers is 'Oslo', expected a list"),
        ([SOME | {"question": 3}], "question is 3, expected a string"),
        ([SOME | {"question": "\ud800"}], r"question holds '\\ud800', which is no character"),
        (
            [{"question": "Who?"}],
            r"a\.json: data\[0\]\.paragraphs\[0\]\.qas\[0\] has no field 'id'",
        ),
        (["Who?"], r"qas\[0\] has no field 'id'"),
        ([], "has no questions"),
    ],
)
def test_malformed_questions(tmp_path, qas, said):
    path = write(tmp_path / "a.json", squad((CONTEXT, qas)))
    with pytest.raises(FirthError, match=said):
        read_squad(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected SQuAD's JSON, an object with 'data'"),
        ('{"data": {}}', "data is {}, expected a list"),
        ('{"data": [\n{]}', "a.json:2: not valid JSON"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', r"paragraphs\[0\] has no field 'context'"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_files_of_another_form(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FirthError, match=said):
        read_squad(tmp_path / "a.json")


def test_a_question_and_its_text_a_row(tmp_path):
    rows = [{"question": "Who?", "context": CONTEXT, "id": "x"}]
    rows += [{"question": "Where?", "context": CONTEXT}, {"question": "Who?", "context": "Eve."}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_pairs(tmp_path / "a.jsonl", (), kind=None, errors="strict")
    assert found.ids == ["x", "2", "3"] and found.contexts == [CONTEXT, "Eve."]
    assert found.context.tolist() == [0, 0, 1] and found.answers is None
    (tmp_path / "b.tsv").write_text("q\tt\nWho?\tEve.\n")
    found = read_pairs(tmp_path / "b.tsv", ["q", "t"], kind=None, errors="strict")
    assert (found.texts, found.contexts) == (["Who?"], ["Eve."])
    with pytest.raises(FirthError, match=r"name the columns of both, --text=QUESTION,CONTEXT"):
        read_pairs(tmp_path / "b.tsv", ["q"], kind=None, errors="strict")
    with pytest.raises(FirthError, match=r"no column 'question'; there are: 'q', 't'"):
        read_pairs(tmp_path / "b.tsv", (), kind=None, errors="strict")


def test_a_task_has_train_and_dev_with_answers(tmp_path):
    write(tmp_path / "train.json", towns(unanswerable=True))
    files = {"train": "train.json", "dev": "train.json", "test": ""}
    task, splits = load_answering(files, directory=str(tmp_path), unanswerable=True)
    assert task.main_metric == "f1" and "best_f1_threshold" in task.metrics
    found = baselines(splits, unanswerable=True)
    assert found.keys() == {"dev"} and found["dev"].metrics == {"f1": 1 / 3, "exact": 1 / 3}
    lines = overview(splits, dict.fromkeys(splits, (20, 2, 8)))
    assert lines[1] == (
        "train: 15 questions on 5 texts, 20 windows; 5 without answer; 2 longer than a window; "
        "2 cut at data.question_length"
    )
    with pytest.raises(FirthError, match=r"question 'Ann-3' has no answer"):
        load_answering(files, directory=str(tmp_path))
    with pytest.raises(FirthError, match=r"data\.dev is not set"):
        load_answering({"train": "train.json", "dev": ""}, directory=str(tmp_path))
    with pytest.raises(FirthError, match=r"no\.json: no such file, nor \.gz or \.xz"):
        load_answering(files | {"train": "no.json"}, directory=str(tmp_path))
    bare = squad((CONTEXT, [{"id": "1", "question": "Who?"}]))
    write(tmp_path / "bare.json", bare)
    with pytest.raises(FirthError, match=r"have no answers, which dev needs"):
        load_answering(files | {"dev": "bare.json"}, directory=str(tmp_path), unanswerable=True)


def test_the_baseline_of_a_task_with_answers_is_the_whole_context(tmp_path):
    write(tmp_path / "a.json", squad(("Oslo is cold", [asked("1", "?", "Oslo is cold", "Oslo")])))
    task, splits = load_answering(
        {"train": str(tmp_path / "a.json"), "dev": "a.json"} | {"dev": str(tmp_path / "a.json")}
    )
    assert task.metrics == ("f1", "exact")
    found = baselines(splits, unanswerable=False)["dev"]
    np.testing.assert_allclose(list(found.metrics.values()), [2 * 1 / 4, 0])


def test_skipped_questions_are_counted_and_named(tmp_path):
    qas = [SOME]
    for n in range(5):
        answers = [{"text": "Eve", "answer_start": 0}]
        qas.append({"id": f"bad{n}", "question": "Who?", "answers": answers})
    path = str(write(tmp_path / "a.json", squad((CONTEXT, qas))))
    _, splits = load_answering({"train": path, "dev": path}, misplaced="skip")
    line = overview(splits, dict.fromkeys(splits, (1, 0, 1)))[1]
    assert line.endswith(
        "5 left out, as an answer is not at its place: 'bad0', 'bad1', 'bad2', ..."
    )
