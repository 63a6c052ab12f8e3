"""What a run of tagging has of its files: the task, words and their vectors, rows, and scores."""

import dataclasses
import functools
from collections import Counter
from pathlib import Path

import jax
import numpy as np

from firth.data.tagging.files import Sentences
from firth.data.tagging.load import load_tagging
from firth.data.tagging.metrics import baselines, overview, score_tags
from firth.data.tagging.rows import TagBuckets, TaggedRows, in_pieces, in_words, word_ids
from firth.data.tagging.windows import CONTEXTS, stride_of
from firth.data.tasks.buckets import of_splits
from firth.data.tasks.overview import Baseline
from firth.data.tasks.task import Task
from firth.errors import FirthError
from firth.models.model import family
from firth.models.word_vectors import formats
from firth.run.labelled.parts import Parts, task_tokenizer
from firth.run.tagging.features import Features, Vectors
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.train_words import END, UNKNOWN, word_vocabulary
from firth.weights.read import Saved


@dataclasses.dataclass
class Tagged(Parts):
    """The parts of a run.

    tokenizer: of words, or that of the weights. given: {word: vector} of data.vectors.
    kept_in: the folder of features, "" for the workdir's. features: {split: vectors of words},
    once `complete` has read them. words: {split: where its rows begin}, once `rows` has made them.
    """

    task: Task
    splits: dict[str, Sentences]
    tokenizer: Tokenizer
    given: dict[str, np.ndarray]
    kept_in: str = ""
    features: dict[str, Vectors] = dataclasses.field(default_factory=dict)
    words: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, config, initial: Saved | None) -> "Tagged":
        """Read the files of a config's data section; `initial` are weights to start from."""
        data = config.data
        task, splits = load_tagging(
            {split: data[split] for split in ("train", "dev", "test")},
            name=data.task,
            word=data.text,
            tag=data.label,
            directory=data.dir,
            dev_fraction=data.dev_fraction,
        )
        given = {}
        if data.get("vectors"):
            if not formats.is_file_name(data.vectors):
                raise FirthError(
                    f"data.vectors={data.vectors}: expected a file of word vectors, whose name "
                    f"ends in {', '.join(formats.ENDINGS)}; firth convert makes one of a run"
                )
            given = dict(zip(*formats.read(Path(data.vectors)), strict=True))
        if initial is None:
            tokenizer = vocabulary(splits["train"].words, given)
        else:
            tokenizer = task_tokenizer(data, initial)
        return cls(task, splits, tokenizer, given, data.get("feature_folder", ""))

    def complete(self, spec: dict, cache: Path | None) -> None:
        """Set the sizes of features, and compute or read the vectors of `model.features`."""
        if not spec.get("features"):
            return
        encoder = features_of(spec)
        spec["feature_size"], spec["feature_mix"] = encoder.size, encoder.mix
        folder = Path(self.kept_in) if self.kept_in else cache and cache.parent / "features"
        for split, sentences in self.splits.items():
            found = encoder.kept(folder, sentences) if folder else encoder(sentences)
            self.features[split] = found

    def rows(self, spec: dict, data, seed: int) -> dict[str, TagBuckets]:
        """The view of each split; rows of train know their rare words."""
        found, stride = {}, stride_of(data.get("context", CONTEXTS[0]), data.get("stride", 0))
        for split, sentences in self.splits.items():
            rows = rows_of(sentences, self.tokenizer, spec, data.length, stride)
            more = dict(rows.more)
            if split in self.features:
                more["features"] = self.features[split]
            if split == "train" and spec["family"] == "tagger":
                more["rare"] = self._rare(rows.tokens)
            numbers = {label: i for i, label in enumerate(self.task.labels)}
            labels = np.array([numbers[tag] for tag in sentences.tags], np.int32)
            found[split] = dataclasses.replace(rows, more=more, labels=labels)
            self.words[split] = rows.words
        make = functools.partial(TagBuckets, firsts=spec["family"] != "tagger", seed=seed)
        return of_splits(make, found)

    def _rare(self, ids: np.ndarray) -> np.ndarray:
        """Bool [T]: words that occur once and have no given vector."""
        rare = np.bincount(ids, minlength=self.tokenizer.vocab_size) == 1
        rare[[n for word in self.given if (n := self.tokenizer.id(word)) is not None]] = False
        return rare[ids]

    def initial(self, model, seed: int) -> dict:
        """Random parameters with the given vectors in their places; {} without such.

        Raises FirthError for vectors of another width than the model's.
        """
        if not self.given:
            return {}
        width = len(next(iter(self.given.values())))
        if width != model.encoder.config.embedding_size:
            raise FirthError(
                f"data.vectors has vectors of {width} numbers, but model.embedding_size="
                f"{model.encoder.config.embedding_size}; set it to {width}"
            )
        tokens = np.zeros((1, 8), np.int32)
        params = jax.device_get(jax.jit(model.init)(jax.random.key(seed), tokens))["params"]
        table = np.array(params["encoder"]["word"]["embedding"])
        for word, vector in self.given.items():
            table[self.tokenizer.id(word)] = vector
        params["encoder"]["word"]["embedding"] = table
        return params

    def overview(self) -> list[str]:
        """Lines to read before the run."""
        unseen = {}
        if self.tokenizer.kind == "word":
            for split, sentences in self.splits.items():
                ids = word_ids(sentences.words, self.tokenizer)
                unseen[split] = float(np.mean(ids == self.tokenizer.unk_id))
        return overview(self.task, self.splits, unseen)

    def baselines(self) -> dict[str, Baseline]:
        """Of each split with tags, but train."""
        return baselines(self.task, self.splits)

    def score(self, split: str, columns: list[dict]) -> tuple[dict, list[list[str]]]:
        """(metrics, tags of each sentence) from the outputs of the batches of a split."""
        sentences = self.splits[split]
        tags = sentences.split(named(columns, self.words[split], self.task.labels))
        return score_tags(self.task.metrics, sentences.split(sentences.tags), tags), tags


def named(columns: list[dict], words: np.ndarray, labels: tuple[str, ...]) -> list[str]:
    """The tags of all words of a file from outputs {example, weight, tags} of batches of rows."""
    found = [""] * int(words[-1])
    for rows in columns:
        for row in np.flatnonzero(rows["weight"]):
            begin, end = words[rows["example"][row] :][:2]
            found[begin:end] = [labels[i] for i in rows["tags"][row, : end - begin]]
    return found


def features_of(spec: dict) -> Features:
    """The frozen encoder that a tagger's spec names."""
    more = (spec.get("feature_layers", "last"), spec.get("feature_context", CONTEXTS[0]))
    return Features(spec["features"], *more)


def rows_of(
    sentences: Sentences, tokenizer: Tokenizer, spec: dict, length: int, stride: int | None = None
) -> TaggedRows:
    """Rows of words for the tagger, of pieces for other families.

    A stride gives rows of pieces document context; see `rows.in_pieces`. Raises FirthError for the
    tagger with one, which reads sentences.
    """
    if spec["family"] != "tagger":
        roles = family(spec["family"]).SPECIAL_TOKENS
        return in_pieces(sentences, tokenizer, length, roles, stride)
    if stride is not None:
        raise FirthError(
            "data.context=document: the tagger reads sentences; give the vectors that it reads "
            "such a context, model.feature_context=document"
        )
    size = spec.get("word_length", 24) if spec.get("filters", 30) else 0
    return in_words(sentences, tokenizer, length, size)


def vocabulary(words: list[str], given) -> Tokenizer:
    """The words that have a vector, then those of train in small letters, the frequent ones first.

    A word of train that has a vector, as it is or in small letters, has no second entry.
    """
    counts = Counter(word.lower() for word in words if word not in given)
    own = sorted((w for w in counts if w not in given), key=lambda word: (-counts[word], word))
    special = (UNKNOWN, END)
    return word_vocabulary([*special, *(w for w in (*given, *own) if w not in special)])
