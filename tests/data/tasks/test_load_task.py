"""Splits of tasks as their files give them: GLUE's, and files of one's own."""

import gzip
import json

import numpy as np
import pytest
from ml_collections import config_dict

from firth.data.tasks.load import custom_task, find_task, get_task, load_split
from firth.data.tasks.task import GLUE, TASKS
from firth.errors import FirthError

COUNTS = {  # train, dev, test (systems.md appendix B; MANIFEST.md)
    "cola": (8551, 1043, 1063),
    "sst2": (67349, 872, 1821),
    "mrpc": (3668, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
    "qnli": (None, 5463, 5463),
}


@pytest.mark.parametrize("name", COUNTS)
def test_glue_counts(shared_data, name):
    directory = shared_data("glue")
    for split, count in zip(("train", "dev", "test"), COUNTS[name], strict=True):
        if count is None:
            continue
        examples = load_split(GLUE[name], split, directory)
        assert len(examples) == len(examples.rows) == count
        assert examples.skipped == 0
        assert (examples.texts_b is None) == (len(GLUE[name].text_columns) == 1)
        if split == "test":
            assert examples.labels is None
        elif name == "stsb":
            assert examples.labels.dtype == np.float32
            assert examples.labels.min() == 0 and examples.labels.max() == 5
        else:
            assert examples.labels.dtype == np.int32
            assert set(np.unique(examples.labels)) == {0, 1}


@pytest.mark.parametrize(
    ("name", "a", "b", "label"),
    [
        ("cola", "The sailors rode the breeze clear of the rocks.", None, 1),
        ("sst2", "it 's a charming and often affecting journey . ", None, 1),
        ("mrpc", "He said the foodservice pie", '" The foodservice pie business does not', 1),
        ("stsb", "A man with a hard hat is dancing.", "A man wearing a hard hat is dancing.", 5.0),
        ("qnli", "What came into force after", "As of that day, the new constitution", 0),
        ("rte", "Dana Reeve, the widow of", "Christopher Reeve had an accident.", 1),
        ("wnli", "The drain is clogged with hair.", "The hair has to be cleaned.", 0),
    ],
)
def test_first_dev_example(shared_data, name, a, b, label):
    examples = load_split(GLUE[name], "dev", shared_data("glue"))
    assert examples.texts_a[0].startswith(a)
    assert examples.texts_b is None if b is None else examples.texts_b[0].startswith(b)
    assert examples.labels[0] == label
    assert examples.rows[0] == (1 if name == "cola" else 2)  # CoLA's dev has no header line


def test_the_files_of_single_sentences(tmp_path):
    """CoLA: no header and four columns, but in `test`; SST-2: a header; texts as they are."""
    train = [["gj04", "1", "", "She left."], ["bc01", "0", "*", ' "She left ']]
    test = [["index", "sentence"], ["0", "They left."]]
    glue_folder(tmp_path, "CoLA", {"train": train, "dev": train[::-1], "test": test})
    sst2 = [["sentence", "label"], ["good ", "1"], [" bad", "0"]]
    glue_folder(tmp_path, "SST-2", {"train": sst2, "test": [["index", "sentence"], ["0", "so"]]})
    found = load_split(GLUE["cola"], "train", tmp_path)
    assert (found.texts_a, found.texts_b) == (["She left.", ' "She left '], None)
    assert found.labels.tolist() == [1, 0] and found.rows.tolist() == [1, 2]
    assert load_split(GLUE["cola"], "dev", tmp_path).labels.tolist() == [0, 1]
    hidden = load_split(GLUE["cola"], "test", tmp_path)
    assert (hidden.texts_a, hidden.labels, hidden.rows.tolist()) == (["They left."], None, [2])
    found = load_split(GLUE["sst2"], "train", tmp_path)
    assert (found.texts_a, found.labels.tolist()) == (["good ", " bad"], [1, 0])
    assert load_split(GLUE["sst2"], "test", tmp_path).texts_a == ["so"]


@pytest.mark.parametrize(
    ("name", "folder", "head", "row", "label"),
    [
        ("mrpc", "MRPC", "Quality|#1 ID|#2 ID|#1 String|#2 String", '1|12|34|"first|second', 1),
        ("rte", "RTE", "index|sentence1|sentence2|label", "0|first|second|not_entailment", 1),
        ("wnli", "WNLI", "index|sentence1|sentence2|label", "0|first|second|1", 1),
        ("qnli", "QNLI", "index|question|sentence|label", "0|first|second|entailment", 0),
        (
            "stsb",
            "STS-B",
            "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
            "0|main|MSR|2012|1|none|none|first|second|3.800",
            3.8,
        ),
    ],
)
def test_the_files_of_pairs(tmp_path, name, folder, head, row, label):
    """First and second text, and the label of each; `test` lacks the last or names others."""
    rows = [head.split("|"), row.split("|")]
    hidden = rows if name == "mrpc" else [line[:-1] for line in rows]
    if name == "mrpc":  # its test file has the index where the label was
        hidden = [["index", *rows[0][1:]], ["0", *rows[1][1:]]]
    glue_folder(tmp_path, folder, {"dev": rows, "test": hidden})
    for split in ("dev", "test"):
        found = load_split(GLUE[name], split, tmp_path)
        assert ([t.lstrip('"') for t in found.texts_a], found.texts_b) == (["first"], ["second"])
    assert load_split(GLUE[name], "dev", tmp_path).labels.tolist() == [pytest.approx(label)]
    assert found.labels is None


def glue_folder(tmp_path, folder, files):
    (tmp_path / folder).mkdir()
    for name, rows in files.items():
        text = "".join("\t".join(row) + "\n" for row in rows)
        (tmp_path / folder / f"{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
    return tmp_path


def test_mnli_layout(tmp_path):
    head = [
        "index",
        "promptID",
        "pairID",
        "genre",
        "sentence1_binary_parse",
        "sentence2_binary_parse",
    ]
    head += ["sentence1_parse", "sentence2_parse", "sentence1", "sentence2"]
    row = ["0", "1", "1n", "fiction", "( a )", "( b )", "(ROOT)", "(ROOT)", "premise", "claim"]
    train, dev = [*head, "label1", "gold_label"], [*head, *(f"label{i}" for i in range(1, 6))]
    glue_folder(
        tmp_path,
        "MNLI",
        {
            "train": [train, [*row, "neutral", "contradiction"]],
            "dev_matched": [[*dev, "gold_label"], [*row, *["neutral"] * 5, "entailment"]],
            "dev_mismatched": [[*dev, "gold_label"], [*row, *["entailment"] * 5, "neutral"]],
            "test_matched": [head, row],
        },
    )
    mnli = GLUE["mnli"]
    assert mnli.dev_splits == ("dev_matched", "dev_mismatched")
    for split, label in (("train", 2), ("dev_matched", 0), ("dev_mismatched", 1)):
        examples = load_split(mnli, split, tmp_path)
        assert (examples.texts_a, examples.texts_b) == (["premise"], ["claim"])
        assert examples.labels.tolist() == [label]
    assert load_split(mnli, "test_matched", tmp_path).labels is None
    with pytest.raises(FirthError, match=r"no split 'dev'; it has .*'dev_matched'"):
        load_split(mnli, "dev", tmp_path)


def test_qqp_layout_and_its_malformed_rows(tmp_path):
    head = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
    rows = [
        head,
        ["1", "2", "3", "a?", "b?", "1"],
        ["4", "5", "6", "broken"],
        ["7", "8", "", "", "", "0"],
    ]
    test = [["id", "question1", "question2"], ["0", "c?", "d?"]]
    glue_folder(tmp_path, "QQP", {"train": rows, "dev": rows, "test": test})
    examples = load_split(GLUE["qqp"], "train", tmp_path)
    assert (examples.texts_a, examples.texts_b) == (["a?", ""], ["b?", ""])
    assert (examples.labels.tolist(), examples.rows.tolist()) == ([1, 0], [2, 4])
    assert examples.skipped == 1
    assert load_split(GLUE["qqp"], "test", tmp_path).labels is None
    with pytest.raises(FirthError, match=r"dev\.tsv\.gz:3: row has 4 columns, expected 6"):
        load_split(GLUE["qqp"], "dev", tmp_path)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [["sentence", "label"], ["good", "1"], ["bad", "2"]],
            r":3: label '2' is not one of '0', '1'",
        ),
        ([["sentence", "label"], ["good", "1"], ["bad"]], r":3: row has 1 columns, expected 2"),
        ([["text", "label"], ["good", "1"]], r"no column 'sentence'; there are: 'text', 'label'"),
        ([["sentence"], ["good"]], r"no column 'label'"),
        ([["sentence", "label"]], r"dev\.tsv\.gz: no examples"),
    ],
)
def test_bad_glue_files(tmp_path, rows, said):
    glue_folder(tmp_path, "SST-2", {"dev": rows})
    with pytest.raises(FirthError, match=said):
        load_split(GLUE["sst2"], "dev", tmp_path)


def test_a_missing_file_says_which_layout_is_expected(tmp_path):
    with pytest.raises(FirthError, match=r"SST-2/dev\.tsv: no such file.*DIR/SST-2/train\.tsv"):
        load_split(GLUE["sst2"], "dev", tmp_path)


@pytest.mark.parametrize("score", ["", "high", "nan", "inf"])
def test_a_score_must_be_a_finite_number(tmp_path, score):
    head = ["index", "sentence1", "sentence2", "score"]
    glue_folder(tmp_path, "STS-B", {"dev": [head, ["0", "a", "b", "4.2"], ["1", "a", "b", score]]})
    with pytest.raises(FirthError, match=f":3: score '{score}' is not a finite number"):
        load_split(GLUE["stsb"], "dev", tmp_path)


def test_imdb_jsonl(shared_data):
    folder = shared_data("imdb")
    task = get_task(
        "imdb", train=f"{folder}/train.jsonl", test=f"{folder}/test.jsonl.xz", text="text"
    )
    assert (task.name, task.labels, task.metrics) == ("imdb", ("0", "1"), ("accuracy",))
    for split in ("train", "test"):
        examples = load_split(task, split)
        assert len(examples) == 25_000 and examples.labels.sum() == 12_500


def test_custom_pairs_from_csv_with_labels_found_in_train(tmp_path):
    (tmp_path / "t.csv").write_text('premise,hypothesis,gold\n"a, b",c,yes\nd,e,maybe\nf,g,no\n')
    (tmp_path / "d.jsonl").write_text('{"hypothesis": "c", "premise": "a", "gold": "no"}\n')
    (tmp_path / "x.tsv").write_text("premise\thypothesis\nq\tr\n")
    task = custom_task(
        tmp_path / "t.csv",
        tmp_path / "d.jsonl",
        "x.tsv",  # relative to the directory given to load_split
        text=("premise", "hypothesis"),
        label="gold",
        metrics=["f1_macro", "accuracy"],
    )
    assert task.labels == ("maybe", "no", "yes") and task.main_metric == "f1_macro"
    examples = load_split(task, "train")
    assert examples.texts_a == ["a, b", "d", "f"] and examples.texts_b == ["c", "e", "g"]
    assert examples.labels.tolist() == [2, 0, 1]
    assert load_split(task, "dev").labels.tolist() == [1]
    assert load_split(task, "test", tmp_path).labels is None


def test_integer_labels_are_sorted_by_value(tmp_path):
    rows = [{"sentence": "a", "label": n} for n in (10, 9, -1, 10)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = custom_task(str(tmp_path / "t.jsonl"))
    assert task.labels == ("-1", "9", "10")
    assert load_split(task, "train").labels.tolist() == [2, 1, 0, 2]


def test_given_labels_set_the_order_and_refuse_others(tmp_path):
    (tmp_path / "t.tsv").write_text("sentence\tlabel\na\tpos\nb\tneg\nc\t\n")
    task = custom_task(str(tmp_path / "t.tsv"), labels=["pos", "neg"])
    with pytest.raises(FirthError, match=r"t\.tsv:4: the label .* is empty"):
        load_split(task, "train")
    with pytest.raises(FirthError, match=r":4: the label .* is empty"):
        load_split(custom_task(str(tmp_path / "t.tsv")), "train")  # '' is no label to discover


def test_custom_regression(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"s": "a", "y": 1}\n{"s": "b", "y": -2.5}\n')
    (tmp_path / "x.csv").write_text("s,y\nc,\n")
    task = custom_task(
        str(tmp_path / "t.jsonl"),
        test=str(tmp_path / "x.csv"),
        text="s",
        label="y",
        kind="regression",
    )
    labels = load_split(task, "train").labels
    assert labels.dtype == np.float32 and labels.tolist() == [1.0, -2.5]
    assert task.metrics == ("pearson", "spearman") and task.limits is None
    assert load_split(task, "test").labels is None  # the column is there, but kept empty


def test_labels_of_a_test_set_may_be_hidden_as_minus_one(tmp_path):
    rows = "".join(f'{{"sentence": "{text}", "label": -1}}\n' for text in "ab")
    (tmp_path / "x.jsonl").write_text(rows)
    task = custom_task(
        dev=str(tmp_path / "x.jsonl"), test=str(tmp_path / "x.jsonl"), labels=["no", "yes"]
    )
    assert load_split(task, "test").labels is None
    with pytest.raises(FirthError, match="label -1 is not one of"):
        load_split(task, "dev")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no task 'mine'; there are cola, sst2"),
        ({"dev": "d.tsv"}, "give labels=, or train="),
        ({"labels": ["a", "b"]}, "no files"),
        ({"train": "t.tsv", "labels": ["a", "a"]}, "each once"),
        ({"train": "t.tsv", "labels": ["a"]}, "two or more"),
        ({"train": "t.tsv", "labels": ["a", "b"], "text": ["sentence"] * 3}, "two for pairs"),
        ({"train": "t.tsv", "labels": ["a", "b"], "text": "words"}, r":1: no column 'words'"),
        ({"train": "t.tsv", "kind": "ranking"}, "'ranking' is not"),
        ({"train": "t.tsv", "labels": ["a", "b"], "metrics": "pearson"}, "no metric 'pearson'"),
        (
            {"train": "t.tsv", "labels": ["a", "b", "c"], "metrics": "f1"},
            "no metric 'f1'.*3 labels",
        ),
        ({"train": "t.tsv", "kind": "regression", "metrics": ["accuracy"]}, "for regression"),
        ({"train": "absent.tsv"}, r"absent\.tsv: no such file"),
        ({"train": "t.tsv", "label": "gold"}, r"t\.tsv:1: no column 'gold'"),
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.tsv").write_text("sentence\tlabel\nx\ta\n")
    with pytest.raises(FirthError, match=said):
        get_task("mine", **options)


@pytest.mark.parametrize(
    ("value", "said"),
    [("7", "is 7, expected a string"), (r'"x \ud800"', r"holds '\\ud800', which is no character")],
)
def test_text_must_be_a_string(tmp_path, value, said):
    (tmp_path / "t.jsonl").write_text(
        f'{{"sentence": "a", "label": 0}}\n{{"sentence": {value}, "label": 1}}\n'
    )
    with pytest.raises(FirthError, match=rf"t\.jsonl:2: 'sentence' {said}"):
        load_split(custom_task(str(tmp_path / "t.jsonl")), "train")


def test_the_diagnostic_set(shared_data, tmp_path):
    """It has the labels of MNLI, whose model labels it; there is nothing to train on."""
    found = load_split(GLUE["ax"], "test", shared_data("glue"))
    assert len(found) == 1104 and found.labels is None
    assert found.texts_a[0] == found.texts_b[1] == "The cat sat on the mat."
    assert GLUE["ax"].labels == GLUE["mnli"].labels
    data = config_dict.ConfigDict(
        dict(task="ax", dir="", train="", dev="", test="", text="", label="", kind="")
    )
    with pytest.raises(FirthError, match=r"'ax' has a test set alone.*train on task=mnli"):
        find_task(data)
    with pytest.raises(FirthError, match=r"diagnostic\.tsv: no such file.*download_glue_data"):
        load_split(GLUE["ax"], "test", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder", "sizes", "labels", "first"),
    [
        ("agnews10k", "ag_news_partial", (10_001, 7600), [2509, 2458, 2496, 2538], 3),
        ("imdb", "imdb", (25_000, 25_000), [12_500, 12_500], 0),
    ],
)
def test_tasks_of_single_texts(shared_data, name, folder, sizes, labels, first):
    """The counts of MANIFEST.md, and of both splits' classes."""
    for split, size in zip(("train", "test"), sizes, strict=True):
        found = load_split(TASKS[name], split, shared_data(folder))
        assert len(found) == size
        counts = labels if split == "train" else [size // len(labels)] * len(labels)
        assert np.bincount(found.labels).tolist() == counts
        if split == "train":
            assert found.labels[0] == first


def test_ag_news_as_distributed(tmp_path):
    """Class, title and description, quoted, and no header; classes count from 1."""
    (tmp_path / "train.csv").write_text('"3","Title, one","Said ""so""."\n"1","Two","Text"\n')
    found = load_split(TASKS["agnews"], "train", tmp_path)
    assert found.texts_a == ["Title, one", "Two"] and found.texts_b == ['Said "so".', "Text"]
    assert found.labels.tolist() == [2, 0] and TASKS["agnews"].names[2] == "Business"
    with pytest.raises(FirthError, match=r"test\.csv: no such file.*without a header"):
        load_split(TASKS["agnews"], "test", tmp_path)
