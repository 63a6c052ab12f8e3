"""Small datasets of TensorFlow Datasets, prepared from nothing but what stands here.

Their builders are real ones, and not registered unless a test says so: what reads the datasets has
their name and the folder alone, as a user of `firth` has.
"""

import csv
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds  # which imports TensorFlow when it is used, half a GB
from tensorflow_datasets.text.glue import Glue

from firth.data.tensorflow import import_tensorflow

REVIEWS = {  # text, label; 0 is "neg". A text of two lines, one that is not ASCII, one twice
    "train": [(f"the film was {w}\nit was not .", n % 2) for n, w in enumerate("abcdefghij")]
    + [("Café au lait", 1), ("the film was a\nit was not .", 0)],
    "test": [("hidden", -1), ("secret", -1), ("unknown", -1)],
}
SCORES = {  # a pair and its score
    "train": [(f"first {n}", f"second {n}", n / 4) for n in range(9)],
    "validation": [(f"dev first {n}", f"dev second {n}", 5 - n) for n in range(4)],
    "test": [("a", "b", -1), ("c", "d", -1)],
}


class _Listed(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A builder of the examples in EXAMPLES, {split: [dict]}."""

    VERSION = tfds.core.Version("1.0.0")
    EXAMPLES, FEATURES, KEYS = {}, {}, None

    def _info(self):
        features = tfds.features.FeaturesDict(self.FEATURES)
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=self.KEYS)

    def _split_generators(self, downloads):
        return {split: enumerate(examples) for split, examples in self.EXAMPLES.items()}

    def _generate_examples(self):
        return iter(())  # an abstract method of TFDS; the splits give the examples themselves


def make_builder(name, features, examples, keys=None, registered=False):
    """A builder's class; `name` in CamelCase. A registered one is known to TFDS in this process."""
    import_tensorflow()  # first, so that it says nothing
    fields = dict(EXAMPLES=examples, FEATURES=features, KEYS=keys, __module__=__name__)
    return type(name, (_Listed,), fields, skip_registration=not registered)


def prepare(folder, *arguments, **options):
    """Make a dataset below `folder`, a data_dir of TFDS."""
    builder = make_builder(*arguments, **options)(data_dir=str(folder))
    builder.download_and_prepare()
    return builder


def prepare_reviews(folder):
    """`made_reviews`: texts of two classes."""
    label = tfds.features.ClassLabel(names=["neg", "pos"])
    features = {"text": tfds.features.Text(), "label": label}
    examples = {
        split: [{"text": text, "label": label} for text, label in rows]
        for split, rows in REVIEWS.items()
    }
    return prepare(folder, "MadeReviews", features, examples, ("text", "label"))


def prepare_scores(folder):
    """`made_scores`: pairs and a number, with no supervised keys."""
    score = tfds.features.Scalar(np.float32)
    features = {"first": tfds.features.Text(), "second": tfds.features.Text(), "score": score}
    examples = {
        split: [dict(zip(features, row, strict=True)) for row in rows]
        for split, rows in SCORES.items()
    }
    return prepare(folder, "MadeScores", features, examples)


class _Downloaded:
    """In the place of TFDS's download manager: what it would fetch lies in a folder."""

    def __init__(self, folder):
        self._folder = Path(folder)

    def download_and_extract(self, url):
        return str(self._folder)

    def download(self, urls):
        files = dict(dev_ids="dev_ids.tsv", train="train.txt", test="test.txt")
        return {name: str(self._folder / "MRPC" / file) for name, file in files.items()}


def prepare_glue(folder, name, tables):
    """`glue/NAME`, by TFDS's own builder, from the folder of GLUE's TSV files."""
    import_tensorflow()

    class Local(Glue, skip_registration=True):
        name = "glue"
        pkg_dir_path = Glue.pkg_dir_path

        def _split_generators(self, downloads):
            return super()._split_generators(_Downloaded(tables))

    builder = Local(config=name, data_dir=str(folder))
    builder.download_and_prepare()
    return builder


def write_tables(folder, task, rows):
    """GLUE's TSV files of a Firth task: `rows(split, n)` is row n of a split, a dict."""
    for split, file in task.files.items():
        path = Path(folder) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        table = [rows(split, n) for n in range(5)]
        header = task.headers.get(split)
        with open(path, "w") as out:
            writer = csv.DictWriter(
                out, table[0], delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None
            )
            if not header:
                writer.writeheader()
            writer.writerows(table)
