"""Sentences whose words have tags: every format, and what is said of a file that has another."""

import gzip
import io
import lzma

import pytest

from firth.data.tagging.files import format_of, read_sentences
from firth.data.tagging.load import load_tagging
from firth.data.tagging.metrics import overview
from firth.errors import FirthError

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter NNP I-NP I-PER


-DOCSTART- -X- -X- O

London NNP I-NP I-LOC
Paris NNP I-NP B-LOC
"""
CONLLU = """# newdoc id = a
# text = I can't go.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\tcan\tAUX\tMD\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
4.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t_\t_
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# newpar
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

# newdoc
1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def written(folder, name, text):
    path = folder / name
    data = text.encode()
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data)
    path.write_bytes(packed)
    return path


@pytest.mark.parametrize("name", ["eng.train", "eng.train.gz", "a.conll.xz", "a.bio"])
def test_columns_with_documents(tmp_path, name):
    found = read_sentences(written(tmp_path, name, CONLL))
    assert found.words == ["EU", "rejects", "Peter", "London", "Paris"]
    assert found.tags == ["I-ORG", "O", "I-PER", "I-LOC", "B-LOC"]
    assert found.offsets.tolist() == [0, 2, 3, 5] and len(found) == 3
    assert found.documents.tolist() == [0, 2]
    assert found.lines.tolist() == [3, 4, 6, 11, 12]
    assert found.split(found.words) == [["EU", "rejects"], ["Peter"], ["London", "Paris"]]
    assert read_sentences(tmp_path / name, tag="1").tags[:2] == ["NNP", "VBZ"]
    assert read_sentences(tmp_path / name, tagged=False).tags is None


def test_conllu_leaves_ranges_and_empty_nodes_out(tmp_path):
    path = written(tmp_path, "a.conllu", CONLLU)
    found = read_sentences(path)
    assert found.words == ["I", "ca", "n't", "go", ".", "Yes", "No"]
    assert found.tags == ["PRON", "AUX", "PART", "VERB", "PUNCT", "INTJ", "INTJ"]
    assert found.offsets.tolist() == [0, 5, 6, 7] and found.documents.tolist() == [0, 2]
    assert read_sentences(path, tag="xpos").tags[:3] == ["PRP", "MD", "RB"]
    assert read_sentences(path, word="lemma").words[1] == "can"


def test_tsv_by_number_and_by_name(tmp_path):
    plain = written(tmp_path, "a.tsv", "New York\tB-LOC\nis\tO\n\nbig\tO\n")
    assert read_sentences(plain).words == ["New York", "is", "big"]
    named = written(tmp_path, "b.tsv", "tag\tword\nO\tIt\nO\tis\n")
    found = read_sentences(named, word="word", tag="tag")
    assert (found.words, found.tags, found.lines.tolist()) == (["It", "is"], ["O", "O"], [2, 3])
    assert read_sentences(named, tagged=False, usual="word").words == ["It", "is"]
    alone = written(tmp_path, "c.tsv", "It\nis\n")
    for usual in ("word", "1"):
        assert read_sentences(alone, tagged=False, usual=usual).words == ["It", "is"]
    assert read_sentences(plain, "1", tagged=False, usual="0").words == ["B-LOC", "O", "O"]
    with pytest.raises(FirthError, match=r"no column 1 .*the line has 1"):
        read_sentences(alone, "1", tagged=False)


def test_white_space_that_does_not_break_is_part_of_a_word(tmp_path):
    path = written(tmp_path, "a.bio", " 10\u00a0000 \t x  B-N\nmen x O\n")
    assert read_sentences(path).words == ["10\u00a0000", "men"]


def test_a_text_has_words_and_no_tags(tmp_path):
    path = written(tmp_path, "a.txt", "One two .\n\nThree\n")
    found = read_sentences(path, tagged=False)
    assert found.split(found.words) == [["One", "two", "."], ["Three"]]
    assert found.documents.tolist() == [0, 1]  # the empty line
    with pytest.raises(FirthError, match=r"a\.txt is plain text, which has no tags"):
        read_sentences(path)


@pytest.mark.parametrize(
    ("name", "text", "options", "pattern"),
    [
        ("a.bio", "a O\nb\n", {}, r"a\.bio:2: 1 columns with white space .* 2 \(as in line 1"),
        ("a.tsv", "a\tO\nb O\n", {}, r"a\.tsv:2: 1 columns with tabs"),
        ("a.conllu", "1\ta\n", {}, r"a\.conllu:1: 2 columns with tabs .* expected 10 .*'upos'"),
        ("a.conllu", CONLLU.replace("4\tgo", "x\tgo"), {}, r"a\.conllu:7: 'x' is no number"),
        ("a.bio", "a O\n", {"tag": "2"}, r"a\.bio:1: no column 2 \(--label\); .* 2: 0 to 1"),
        ("a.bio", "a O\n", {"word": "form"}, r"a\.bio:1: no column 'form' \(--text\); columns"),
        ("a.tsv", "a\tO\n", {"tag": "ner"}, r"no column 'ner' \(--label\); there are: 'a', 'O'"),
        ("a.bio", "a\nb\n", {}, r"a\.bio:1: word and tag are the same column of 1"),
        ("a.tsv", "a\tO\nb\t \n", {}, r"a\.tsv:2: an empty tag"),
        ("a.bio", "\n\n", {}, r"a\.bio: no sentences"),
        ("a.bio", "-DOCSTART- O\n", {}, r"a\.bio: no sentences"),
        ("a.bio", "a O\n", {"format": "xml"}, r"format 'xml' is unknown; expected columns"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_columns(tmp_path, name, text, options, pattern):
    with pytest.raises(FirthError, match=pattern):
        read_sentences(written(tmp_path, name, text), **options)


def test_formats_by_ending():
    names = ("a.conllu.gz", "a.tsv", "a.txt.xz", "eng.train.gz", "a")
    assert list(map(format_of, names)) == ["conllu", "tsv", "txt", "columns", "columns"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv.gz"])
def test_files_of_another_kind_are_no_columns(tmp_path, name):
    with pytest.raises(FirthError, match=rf"{name}: a file of words with tags has another form"):
        read_sentences(tmp_path / name)


def test_standard_input_is_text_where_no_tags_are_read(monkeypatch):
    for tagged, words in ((False, ["Ann", "lives", "here"]), (True, ["Ann"])):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Ann lives here\n")))
        assert read_sentences("-", tagged=tagged).words == words


def test_a_task_has_tags_of_all_splits_in_bio(tmp_path):
    train = written(tmp_path, "train", CONLL)
    dev = written(tmp_path, "dev", "A I-MISC\nb B-PER\nc E-PER\n")
    task, splits = load_tagging({"train": "train", "dev": "dev"}, directory=str(tmp_path))
    assert splits["train"].tags == ["B-ORG", "O", "B-PER", "B-LOC", "B-LOC"]
    assert splits["dev"].tags == ["B-MISC", "B-PER", "I-PER"]
    assert task.labels == ("O", "B-LOC", "B-MISC", "B-ORG", "B-PER", "I-PER")
    assert task.metrics[0] == "entity_f1" and task.kind == "tagging"
    assert load_tagging({"train": str(train), "dev": str(dev)}, tag="-1")[0].labels == task.labels


def test_tags_that_train_lacks_are_named_before_a_run(tmp_path):
    """Such a tag of dev is one of the task's, and counts as wrong."""
    (tmp_path / "train").write_text("dogs N\nsleep V\n\n")
    (tmp_path / "dev").write_text("oh I\nfine A\nwell I\ndogs N\n\n")
    task, splits = load_tagging({"train": f"{tmp_path}/train", "dev": f"{tmp_path}/dev"})
    lines = [line for line in overview(task, splits, {}) if "train lacks" in line]
    assert lines == ["dev: train lacks these tags, so they cannot be learnt: I 2, A 1"]
    assert not any("train lacks" in x for x in overview(task, {"train": splits["dev"]}, {}))


def test_a_dev_split_has_whole_documents_or_sentences(tmp_path):
    text = "".join(f"-DOCSTART- O\n\na{i} X\n\nb{i} Y\n\n" for i in range(20))
    written(tmp_path, "docs", text)
    written(tmp_path, "plain", text.replace("-DOCSTART- O\n\n", ""))
    for name, together in (("docs", True), ("plain", False)):
        found = load_tagging({"train": name}, directory=str(tmp_path), dev_fraction=0.25)[1]
        assert [len(found[split]) for split in ("train", "dev")] == [30, 10]
        numbers = [{word[1:] for word in found[split].words} for split in ("train", "dev")]
        assert numbers[0].isdisjoint(numbers[1]) == together
        both = found["train"].words + found["dev"].words
        assert sorted(both) == sorted(f"{c}{i}" for i in range(20) for c in "ab")
        assert found["dev"].documents.tolist() == ([0, 2, 4, 6, 8] if together else [0])


@pytest.mark.parametrize(
    ("files", "fraction", "pattern"),
    [
        ({}, 0.1, "nothing to learn"),
        ({"train": "gone"}, 0.1, r"gone: no such file, nor \.gz"),
        ({"train": "one"}, 0.1, "every tag is 'X'"),
        ({"train": "two"}, 0.0, r"data\.dev_fraction=0;"),
        ({"train": "two"}, 0.1, "2 sentences cannot be divided"),
    ],
)
def test_a_task_that_cannot_be(tmp_path, files, fraction, pattern):
    written(tmp_path, "one", "a X\n\nb X\n")
    written(tmp_path, "two", "a X\n\nb Y\n")
    with pytest.raises(FirthError, match=pattern):
        load_tagging(files, directory=str(tmp_path), dev_fraction=fraction)


def test_conll_2003_has_its_published_counts(shared_data):
    expected = {
        "train": (946, 14041, 203621),
        "testa": (216, 3250, 51362),
        "testb": (231, 3453, 46435),
    }
    for part, counts in expected.items():
        found = read_sentences(shared_data(f"conll2003/eng.{part}.gz"))
        assert (len(found.documents), len(found), len(found.words)) == counts


def test_english_ewt_has_its_published_counts(shared_data):
    for part, count in (("dev", 2001), ("test", 2077)):
        found = read_sentences(shared_data(f"ud_english_ewt/en_ewt-ud-{part}.conllu.gz"))
        assert len(found) == count and len(set(found.tags)) == 17
