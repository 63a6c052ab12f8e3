"""Trees of the Stanford treebank, against GLUE's own copy of the sentences."""

import gzip
import lzma

import numpy as np
import pytest

from firth.data.tasks.load import load_split
from firth.data.tasks.task import TASKS
from firth.data.tasks.trees import read_trees
from firth.errors import FirthError

SPLITS = ("train", "dev", "test")
TREES = "(3 (2 It) (4 (4 (2 's) (4 great)) (2 .)))\n\n(0 (1 Bad) (2 (2 -LRB-) (2 a\\/b)))\n(2 so)\n"


@pytest.mark.parametrize("pack", [None, gzip, lzma])
def test_sentences_and_labels(tmp_path, pack):
    path = tmp_path / ("t.txt" + {gzip: ".gz", lzma: ".xz"}.get(pack, ""))
    path.write_bytes(pack.compress(TREES.encode()) if pack else TREES.encode())
    table = read_trees(path)
    assert table.columns == {
        "sentence": ["It 's great .", "Bad ( a/b", "so"],
        "label": ["3", "0", "2"],
    }
    assert table.rows.tolist() == [1, 3, 4]  # of the file


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("(3 (2 It) (4 works)", "a bracket is not closed"),
        ("(3 (2 It)) (4 works)", "there is text beside the tree"),
        ("(3 (2 It)) works", "there is text beside the tree"),
        ("works", "there is text beside the tree"),
        ("(3 (5 It))", "the label '5' is not one of 0 to 4"),
        ("((2 It))", r"the label '\(' is not one of 0 to 4"),
        ("(3 (2))", "a bracket closes no node with a word"),
        ("(3 a))", "there is text beside the tree"),
        ("(", "a bracket is not closed"),
    ],
)
def test_lines_that_are_no_tree(tmp_path, line, said):
    path = tmp_path / "t.txt"
    path.write_text(f"(2 so)\n{line}\n")
    with pytest.raises(FirthError, match=f"t.txt:2: not a labelled tree like .*: {said}"):
        read_trees(path)


def test_the_treebank_has_five_classes(shared_data):
    """The counts of the paper and of MANIFEST.md."""
    folder, counts = shared_data("sst_trees"), (8544, 1101, 2210)
    for split, count in zip(SPLITS, counts, strict=True):
        found = load_split(TASKS["sst5"], split, folder)
        assert len(found) == count
        if split == "train":
            assert np.bincount(found.labels).tolist() == [1092, 2218, 1624, 2322, 1288]
        with gzip.open(folder / f"{split}.txt.gz", "rt") as file:
            roots = [int(line[1]) for line in file]
        assert roots == found.labels.tolist()


def test_two_classes_are_those_of_glue(shared_data):
    """GLUE's dev split is the treebank's without neutral sentences, in lower case."""
    folder = shared_data("sst_trees")
    sizes = [len(load_split(TASKS["sst2_trees"], split, folder)) for split in SPLITS]
    assert sizes == [6920, 872, 1821]
    ours = load_split(TASKS["sst2_trees"], "dev", folder)
    theirs = load_split(TASKS["sst2"], "dev", shared_data("glue"))
    assert labelled(ours) == labelled(theirs)
    with gzip.open(folder / "dev.txt.gz", "rt") as file:
        lines = file.read().splitlines()
    roots = [lines[row - 1][1] for row in ours.rows]
    assert [int(root > "2") for root in roots] == ours.labels.tolist() and "2" not in roots


def labelled(examples):
    """{text without case and double spaces: its label}."""
    texts = (" ".join(text.lower().split()) for text in examples.texts_a)
    return dict(zip(texts, examples.labels.tolist(), strict=True))
