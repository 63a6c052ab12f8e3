"""A tagger of words in Python and for commands: sentences in, the tag of each word out."""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from firth import recipe
from firth.data.tagging.files import Sentences
from firth.data.tagging.metrics import by_type, metrics_of, score_tags
from firth.data.tagging.rows import TagBuckets
from firth.data.tagging.schemes import marks_entities, to_bio
from firth.data.tagging.windows import CONTEXTS, stride_of
from firth.data.tasks.task import shown
from firth.errors import FirthError
from firth.inference.encoder import Encoder, load
from firth.inference.execution.ahead import computed, of_view
from firth.models.logistic.files import is_logistic
from firth.models.model import bound, longest
from firth.objectives.tag import EXTRAS, Tag
from firth.run.tagging.parts import features_of, named, rows_of
from firth.weights.description import NAME, read_description

HEADS = ("crf", "tags")
ARRAYS = ("tokens", "segments", "mask", "word_mask", "first", "begins", *EXTRAS)
LENGTH = 128  # words of a row, where no recipe says
WINDOW = 2048  # sentences at a time


def is_tagger(source) -> bool:
    """Whether a Firth directory or a workdir on this machine holds a model that tags words."""
    path = Path(source)
    if is_logistic(path):
        return False
    return (path / NAME).is_file() and bool(set(HEADS) & set(read_description(path)[0].heads))


class Tagger:
    """A model that gives words tags.

    Attributes: labels, their names; columns, (word, tag) as its recipe names them, "" for the usual
    ones. Raises FirthError for a model without a head for tags, or without their names.
    """

    def __init__(self, source, dtype: str | None = None):
        self.encoder: Encoder = load(source, dtype=dtype)
        saved = self.encoder.saved
        head = next((head for head in HEADS if head in saved.heads), None)
        if head is None or not saved.labels or saved.tokenizer_path is None:
            raise FirthError(
                f"{saved.source} gives words no tags; train it first: firth train --config "
                "tagger.py --config.data.train=FILE --workdir DIR"
            )
        trained = recipe.read(Path(saved.source)) if saved.layout == "workdir" else {}
        data = trained.get("data", {})
        self.labels = saved.labels
        self.columns = (data.get("text", ""), data.get("label", ""))
        self.length = min(data.get("length", LENGTH), longest(saved.spec))
        constrain = trained.get("objective", {}).get("constrain", True)
        objective = Tag(crf=head == "crf", constrain=constrain, labels=saved.labels)
        spec = saved.spec
        self._features = features_of(spec) if spec.get("features") else None
        context = data.get("context", CONTEXTS[0])
        self._stride = stride_of(context, data.get("stride", 0))
        self._whole = "document" in (context, spec.get("feature_context"))
        absent = {"first"} if spec["family"] == "tagger" else set()
        absent |= set() if spec.get("filters") else {"characters"}
        absent |= set() if self._features else {"features"}
        absent |= {"begins"} if self._stride is None else set()
        self._present = [name for name in ARRAYS if name not in absent]

        def tags(model, *arrays):
            batch = dict(zip(self._present, arrays, strict=True))
            scores_BWC = objective.logits(model, batch, train=False)
            return objective.decode(model, scores_BWC, batch)

        # By the labels a CRF knows what may follow what.
        key = ("tags", head, constrain, tuple(self._present), tuple(saved.labels))
        self._run = self.encoder.program(key, lambda: bound(self.encoder.model, tags))
        self._read = (*key, self.length, self._stride, self._whole)

    def digest(self) -> str:
        """A digest of everything that decides the tags."""
        return self.encoder.saved.digest(self.encoder.tokenizer.digest, *self._read)

    def __call__(self, sentences: Sentences, batch_size: int = 32) -> list[list[str]]:
        """The tags of each sentence; entities in BIO."""
        spec = self.encoder.saved.spec
        rows = rows_of(sentences, self.encoder.tokenizer, spec, self.length, self._stride)
        if self._features:
            rows.more["features"] = self._features(sentences)
        view, columns = TagBuckets(rows, "first" in self._present), []
        prepared = of_view(view, self._present, batch_size)
        for batch, tags in computed(self._run, self.encoder.params, prepared):
            columns.append({k: batch[k] for k in ("example", "weight")} | {"tags": tags})
        return sentences.split(named(columns, rows.words, self.labels))

    def windows(
        self, sentences: Sentences, batch_size: int = 32, begin: int = 0
    ) -> Iterator[tuple]:
        """(number of the first sentence, tags of the sentences) of WINDOW sentences at a time.

        With document context at least so many, up to where a document ends. `begin` is the first of
        all, which begins a window.
        """
        while begin < len(sentences):
            end = begin + WINDOW
            if self._whole:
                later = np.searchsorted(sentences.documents, end)
                end = int(np.append(sentences.documents, len(sentences))[later])
            yield begin, self(part(sentences, begin, end), batch_size)
            begin = end


def part(sentences: Sentences, begin: int, end: int) -> Sentences:
    """The sentences from `begin` up to `end`."""
    offsets = sentences.offsets[begin : end + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    inner = (sentences.documents > begin) & (sentences.documents < end)
    return Sentences(
        sentences.source,
        sentences.words[first:last],
        sentences.tags and sentences.tags[first:last],
        offsets - first,
        np.append(0, sentences.documents[inner] - begin),
        sentences.lines[first:last],
    )


def measure(labels: Sequence[str], sentences: Sentences, tags: list[list[str]]) -> dict:
    """{"sentences", "words", "unknown_tags", "unknown", "metrics", "by_type"} of tags against a
    file's.

    `labels` are the model's; unknown_tags counts the words whose tag is none of them, which are
    wrong, and unknown has {tag: words}. by_type is {} where the tags mark no entities.
    """
    gold = sentences.split(sentences.tags)
    if marks_entities(set(sentences.tags)):
        gold = [to_bio(one) for one in gold]
    flat = list(itertools.chain(*gold))
    metrics = metrics_of(labels)
    unknown = Counter(tag for tag in flat if tag not in labels)
    return {
        "sentences": len(sentences),
        "words": len(flat),
        "unknown_tags": unknown.total(),
        "unknown": dict(unknown.most_common()),
        "metrics": score_tags(metrics, gold, tags),
        "by_type": by_type(gold, tags) if "entity_f1" in metrics else {},
    }


def check_labels(labels: Sequence[str], sentences: Sentences):
    """Raise FirthError for a file that `measure` cannot compare with a model's labels.

    It knows none of them, or only one of the two marks entities.
    """
    tags = set(sentences.tags)
    entities = marks_entities(labels)
    if marks_entities(tags) != entities and tags != {"O"}:
        odd = [tag for tag in sentences.tags if not marks_entities([tag, "B-X"])]
        first = f"; the first other is {odd[0]!r} in line {_line(sentences, odd[0])}" if odd else ""
        said = "marks entities" if entities else "does not mark entities"
        raise FirthError(
            f"{sentences.source}: the model {said}, as in {shown(labels)}, and the tags here are "
            f"{shown(sorted(tags))}{first if entities else ''}"
        )
    known = {tag for one in sentences.split(sentences.tags) for tag in to_bio(one)}
    if not (known if entities else tags) & set(labels):
        raise FirthError(
            f"{sentences.source}: none of its tags, {shown(sorted(tags))}, is one of the model's: "
            f"{shown(labels)}"
        )


def _line(sentences: Sentences, tag: str) -> int:
    return int(sentences.lines[sentences.tags.index(tag)])
