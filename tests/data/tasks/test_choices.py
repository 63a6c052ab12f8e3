"""Questions with choices: what is read of files, what is refused, and the rows of a question."""

import gzip

import numpy as np
import pytest
from helpers.choosing import towns, write_csv, write_jsonl, write_race

from firth.data.tasks.buckets import Buckets
from firth.data.tasks.choices import beside, label_of, longest_choice, tokenise_choices
from firth.data.tasks.columns import choice_columns
from firth.data.tasks.load import custom_task, get_task, load_split
from firth.data.tasks.overview import baselines
from firth.data.tasks.split import load_splits
from firth.errors import FirthError
from firth.models import bert, xlnet
from firth.tokenizers.load import train_tokenizer
from firth.tokenizers.special_tokens import build_template


def test_the_question_stands_before_the_choice_or_around_it():
    assert beside(None, "go") == beside("", "go") == "go"
    assert beside("Where?", "to Rome") == "Where? to Rome"
    assert beside("He is from_.", "Rome") == "He is fromRome." and beside("_s", "it") == "its"
    assert beside("What is max_len, or a__b?", "it") == "What is max_len, or a__b? it"
    assert beside("He ___ home, as _ said.", r"\1 go") == r"He \1 go home, as \1 go said."


@pytest.mark.parametrize(
    ("value", "number"), [(0, 0), ("3", 3), (" 1 ", 1), ("A", 0), ("d", 3), (2, 2)]
)
def test_a_label_is_a_number_or_a_letter(value, number):
    assert label_of("f:1", "label", value, 4) == number


@pytest.mark.parametrize("value", [4, -1, "E", "", None, "1.0", True, "two", 10**12])
def test_labels_outside_the_choices(value):
    with pytest.raises(FirthError, match=r"f:1: label .* none of the 4 choices; expected 0 to 3"):
        label_of("f:1", "label", value, 4)


def test_files_of_ones_own_are_found_by_their_columns(tmp_path):
    rows = towns()
    listed = custom_task(str(write_jsonl(tmp_path / "a.jsonl", rows)))
    assert (listed.kind, listed.choices, listed.labels) == ("choice", ("choices",), ("0", "1", "2"))
    assert listed.text_columns == ("context", "question") and listed.label_column == "label"
    table = custom_task(str(write_csv(tmp_path / "a.csv", rows)))
    assert table.choices == ("ending0", "ending1", "ending2")
    one, other = (load_split(task, "train") for task in (listed, table))
    assert one.texts_a == other.texts_a and one.choices == other.choices
    assert one.texts_a[0] == rows[0]["context"]
    assert one.choices[0] == tuple(f"Where does Ann live? {town}" for town in rows[0]["choices"])
    assert one.labels.tolist() == other.labels.tolist() == [row["label"] for row in rows]
    assert one.places[1] == f"{tmp_path}/a.jsonl:2"


def test_named_columns_letters_and_a_question_alone(tmp_path):
    (tmp_path / "a.tsv").write_text("q\tx\ty\tgold\nWho?\tAnn\tBob\tB\nWhy?\tso\tno\tA\n")
    task = custom_task(
        str(tmp_path / "a.tsv"), text="q", label="gold", choices=("x", "y"), kind="choice"
    )
    found = load_split(task, "train")
    assert found.labels.tolist() == [1, 0] and found.texts_a == ["Who?", "Why?"]
    assert found.choices == [("Ann", "Bob"), ("so", "no")]
    (tmp_path / "b.csv").write_text("question,option_a,option_b,answer\nWho?,Ann,Bob,a\n")
    assert custom_task(str(tmp_path / "b.csv")).choices == ("option_a", "option_b")


QUESTION = {"context": "a text", "choices": ["x", "y"], "label": 0}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"choices": ["x", "y", "z"]}, r"a\.jsonl:2: has 3 choices, expected 2"),
        ({"choices": ["x"]}, r"a\.jsonl:2: has 1 choices, expected 2"),
        ({"choices": ["x", " "]}, r"a\.jsonl:2: choice 1 is ' ', expected a text"),
        ({"choices": ["x", 5]}, r"a\.jsonl:2: choice 1 is 5, expected a text"),
        ({"choices": ["x", "\ud800"]}, r"a\.jsonl:2: 'choice 1' holds '\\ud800', which is no"),
        ({"choices": "xy"}, r"a\.jsonl:2: 'choices' is 'xy', expected a list of choices"),
        ({"context": None}, r"a\.jsonl:2: 'context' is None, expected a string"),
        ({"context": "x \ud800"}, r"a\.jsonl:2: 'context' holds '\\ud800', which is no char"),
        ({"label": 2}, r"a\.jsonl:2: label 2 .* expected 0 to 1, or A to B"),
        ({"label": ""}, r"a\.jsonl:2: label '' .*none of the 2 choices"),
    ],
)
def test_questions_that_are_refused(tmp_path, row, said):
    write_jsonl(tmp_path / "a.jsonl", [QUESTION, QUESTION | row])
    with pytest.raises(FirthError, match=said):
        load_split(custom_task(str(tmp_path / "a.jsonl")), "train")


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,label\nx,0\n", {"kind": "choice"}, "no columns are known to hold choices"),
        ("choice0,choice1,label\nx,y,0\n", {}, "no column is known to hold a context"),
        ("text,story,choice0,choice1,label\na,b,x,y,0\n", {}, "the text may be in story or text"),
        ("text,choices,label\na,b,0\n", {}, "'choices' is 'b', expected a list.*column for each"),
        ("text,choice0,choice1\na,b,c\n", {}, "no column is known to hold labels"),
        ("text,a,b,label\nx,y,z,0\n", {"choices": ("a", "c")}, "no column 'c'"),
        ("text,choices,label\n", {}, "no examples; expected a question a row"),
        ("text,choice0,choice1,label\n", {}, "no examples; expected a question a row"),
    ],
)
def test_columns_that_are_not_clear(tmp_path, text, options, said):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(FirthError, match=said):
        load_split(custom_task(str(tmp_path / "a.csv"), **options), "train")


def test_the_folds_of_codah(shared_data):
    splits = load_splits(get_task("codah"), str(shared_data("codah/fold_0")))
    assert {name: len(found) for name, found in splits.items()} == {
        "train": 1665,
        "dev": 556,
        "test": 555,
    }
    with gzip.open(shared_data("codah/fold_0/test.tsv.gz"), "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    test = splits["test"]
    assert test.texts_a == [line[1] for line in lines]
    assert test.choices == [tuple(line[2:6]) for line in lines]
    assert test.labels.tolist() == [int(line[6]) for line in lines]
    with pytest.raises(FirthError, match=r"train\.tsv: no such file.*one of CODAH's folds"):
        load_split(get_task("codah"), "train", str(shared_data("codah")))


def test_swag_as_it_comes(tmp_path):
    head = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,"
    head += "ending0,ending1,ending2,ending3"
    row = "0,v_1,4,He sits. He,He sits.,He,gold,gets up.,flies.,sings.,is gone."
    (tmp_path / "train.csv").write_text(f"{head},label\n{row},0\n")
    (tmp_path / "val.csv").write_text(f"{head},label\n{row},3\n")
    (tmp_path / "test.csv").write_text(f"{head}\n{row}\n")
    found = load_splits(get_task("swag"), str(tmp_path))
    assert found["dev"].texts_a == ["He sits."] and found["dev"].labels.tolist() == [3]
    assert found["dev"].choices[0][1] == "He flies." and found["test"].labels is None


def race(folder):
    options = [["a", "b", "c", "d"], ["e", "f", "g", "h"]]
    write_race(folder, "high", 1, ["Why?", "He is _ ."], options, ["B", "D"], "One.")
    write_race(folder, "middle", 9, ["Who?"], options[:1], ["A"], "Two.")
    return folder


def test_the_folders_of_race(tmp_path):
    for split in ("train", "dev", "test"):
        race(tmp_path / split)
    task = get_task("race")
    found = load_splits(task, str(tmp_path))["dev"]
    assert found.texts_a == ["One.", "One.", "Two."] and found.labels.tolist() == [1, 3, 0]
    assert found.choices[1][2] == "He is g ." and found.choices[2][0] == "Who? a"
    assert found.groups.tolist() == ["high", "high", "middle"]
    assert found.places[1].endswith("dev/high/1.txt: question 2")
    own = custom_task(str(tmp_path / "train" / "high"))
    assert (own.kind, own.labels) == ("choice", ("0", "1", "2", "3"))
    assert load_split(own, "train").groups is None


@pytest.mark.parametrize(
    ("passage", "said"),
    [
        ("{", r"1\.txt: not a JSON value"),
        ("[]", r"1\.txt: has no object"),
        ('{"article": "a", "questions": []}', r"1\.txt: has no 'options'"),
        (
            '{"article": "a", "questions": ["b"], "options": [], "answers": []}',
            "has 1 questions, 0 lists of options and 0 answers",
        ),
        (
            '{"article": "a", "questions": 5, "options": [["c", "d"]]}',
            r"1\.txt: 'questions' is 5, expected a list",
        ),
        (
            '{"article": "a", "questions": ["b"], "options": [["c", "d"]], "answers": null}',
            r"1\.txt: question 1",
        ),
        (
            '{"article": "a", "questions": ["b"], "options": [["c", "d"]], "answers": ["C"]}',
            r"1\.txt: question 1: label 'C'",
        ),
    ],
)
def test_passages_that_are_refused(tmp_path, passage, said):
    (tmp_path / "1.txt").write_text(passage)
    with pytest.raises(FirthError, match=said):
        load_split(custom_task(str(tmp_path)), "train")
    (tmp_path / "1.txt").unlink()
    with pytest.raises(FirthError, match="no questions; expected RACE's"):
        custom_task(str(tmp_path))


def test_a_dev_split_has_other_contexts(tmp_path):
    rows = [row | {"context": f"text {i // 2}"} for i, row in enumerate(towns(40))]
    task = custom_task(str(write_jsonl(tmp_path / "a.jsonl", rows)))
    found = load_splits(task, None, 0.2)
    assert not set(found["train"].texts_a) & set(found["dev"].texts_a)
    assert len(found["train"]) + len(found["dev"]) == 40 and 6 <= len(found["dev"]) <= 10
    lines = {f"{tmp_path}/a.jsonl:{i + 1}": row for i, row in enumerate(rows)}
    for place, context, choices in zip(
        found["dev"].places, found["dev"].texts_a, found["dev"].choices, strict=True
    ):
        assert lines[place]["context"] == context
        assert choices[0].endswith(lines[place]["choices"][0])


def test_baselines(tmp_path):
    rows = [{"context": "a", "choices": ["x", "yy", "zz"], "label": n} for n in (0, 0, 1, 2)]
    task = custom_task(str(write_jsonl(tmp_path / "a.jsonl", rows)), str(tmp_path / "a.jsonl"))
    assert longest_choice([("x", "yy", "zz"), ("aa", "b", "c")]).tolist() == [1, 0]
    found = baselines(task, load_splits(task))["dev"]
    assert found.metrics == {"accuracy": 0.5} and found.longest == {"accuracy": 0.25}
    assert str(found).endswith("(always '0'): accuracy 0.5000; longest choice: accuracy 0.2500")


CONTEXTS = ("a b c d e f", "a", "b c " * 9)
CHOICES = (("a", "b c d"), ("a b", "c c c c c c c c c c c c"), ("d e", "f"))


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("wordpiece", ["a b c d e f"] * 5, 60)


@pytest.mark.parametrize("roles", [bert.SPECIAL_TOKENS, xlnet.SPECIAL_TOKENS])
@pytest.mark.parametrize("length", [32, 12, 6])
def test_rows_lose_context_first(tokenizer, roles, length):
    """Against a loop over the rows: the context at its end, and a choice at its beginning."""
    names = [f"f:{i}" for i in range(3)]
    rows = tokenise_choices(CONTEXTS, CHOICES, names, tokenizer, length, roles)
    template, cut, at = build_template(roles, tokenizer), set(), 0
    room = length - template.size(2)
    for n, (context, own) in enumerate(zip(CONTEXTS, CHOICES, strict=True)):
        for choice in own:
            a, b = (encoded.ids for encoded in tokenizer.encode([context, choice]))
            whole = len(a) + len(b)
            b = b[max(len(b) - (room - 1), 0) :]
            a = a[: room - len(b)]
            cut |= {n} if len(a) + len(b) < whole else set()
            ids, second = template.join(a, b)
            begin, end = rows.offsets[at : at + 2]
            np.testing.assert_array_equal(rows.tokens[begin:end], ids)
            assert rows.second[at] == second and len(ids) <= length
            at += 1
    assert rows.truncated == len(cut) and len(rows) == 3 and rows.choices == 2


def test_rows_across_chunks_are_the_same(tokenizer, monkeypatch):
    names = [f"f:{i}" for i in range(3)]
    whole = tokenise_choices(CONTEXTS, CHOICES, names, tokenizer, 12)
    monkeypatch.setattr("firth.data.tasks.choices.CHUNK_TEXTS", 2)
    parts = tokenise_choices(CONTEXTS, CHOICES, names, tokenizer, 12)
    np.testing.assert_array_equal(whole.tokens, parts.tokens)
    np.testing.assert_array_equal(whole.offsets, parts.offsets)
    with pytest.raises(FirthError, match="f:2: the context has no token"):
        tokenise_choices(("a", "b", "\u200b"), CHOICES, names, tokenizer, 12)
    empty = (*CHOICES[:2], ("d", "\u200b"))
    with pytest.raises(FirthError, match="f:2: a choice has no token"):
        tokenise_choices(CONTEXTS, empty, names, tokenizer, 12)
    with pytest.raises(FirthError, match="length=4: expected at least 5 for choices"):
        tokenise_choices(CONTEXTS, CHOICES, names, tokenizer, 4)


def test_batches_of_questions(tokenizer):
    """Every question once, its rows together, as long as its longest row needs."""
    rng = np.random.default_rng(0)
    words = np.array(list("abcdef"))

    def text(most):
        return " ".join(rng.choice(words, rng.integers(1, most)))

    contexts = [text(12) for _ in range(11)]
    choices = [tuple(text(32) for _ in range(3)) for _ in range(11)]
    labels = rng.integers(0, 3, 11).astype(np.int32)
    names = [f"f:{i}" for i in range(11)]
    rows = tokenise_choices(contexts, choices, names, tokenizer, 48, labels=labels)
    view, seen = Buckets(rows, seed=3), []
    assert view.steps_per_epoch(4) == 3
    batches = [view.batch(step, 4) for step in range(3)]
    for batch in [*batches, *view.sequential(4)]:
        B, C, L = batch["tokens"].shape
        assert (B, C) == (4, 3) and L in view.lengths
        assert view.fields["tokens"][0] == (3, None)
        for row in range(B):
            if not batch["weight"][row]:
                assert not batch["mask"][row].any()
                continue
            n = int(batch["example"][row])
            seen.append(n)
            assert batch["labels"][row] == labels[n]
            for c in range(C):
                begin, end = rows.offsets[3 * n + c : 3 * n + c + 2]
                size = end - begin
                np.testing.assert_array_equal(
                    batch["tokens"][row, c, :size], rows.tokens[begin:end]
                )
                assert batch["mask"][row, c].sum() == size
                assert batch["segments"][row, c].sum() == size - rows.second[3 * n + c]
    assert sorted(seen) == sorted([*range(11)] * 2)
    padding = 1 - len(rows.tokens) / sum(batch["tokens"].size for batch in batches)
    assert view.pad_fraction(4) == pytest.approx(padding)
    halves = [view.batch(0, 4, index, 2)["tokens"] for index in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves), batches[0]["tokens"])


def test_columns_of_choices_have_no_gaps():
    assert choice_columns(["a", "Ending 1", "ending_0", "ending2"]) == (
        "ending_0",
        "Ending 1",
        "ending2",
    )
    for header in (["ending0", "ending2"], ["choice1", "choice2"], ["choice0", "label"]):
        assert choice_columns(header) == ()
