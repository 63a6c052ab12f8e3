"""A task of tagging, and the sentences of its splits."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from firth.data.permutation import derive_key, random_bits
from firth.data.tagging.files import Sentences, read_sentences
from firth.data.tagging.metrics import metrics_of
from firth.data.tagging.schemes import marks_entities, misplaced, misspelt, to_bio
from firth.data.tasks.tables import find_file
from firth.data.tasks.task import Task
from firth.errors import FirthError

log = logging.getLogger(__name__)
KIND = "tagging"
FEW = 10  # documents: a dev split has whole ones where there are so many
OPTIONS = ("--config.data.text", "--config.data.label")


def load_tagging(
    files: Mapping[str, str],
    *,
    name: str = "",
    word: str = "",
    tag: str = "",
    directory: str = "",
    dev_fraction: float = 0.0,
) -> tuple[Task, dict[str, Sentences]]:
    """(the task, the sentences of each split).

    Tags of entities become BIO, whichever scheme a file has; the first one that breaks it is named
    in a note, with its line. The tags of all splits together are
    the labels, O first: one that train lacks is never predicted, but is no error either. Without a
    dev split, `dev_fraction` of train is one: whole documents where there are ten or more,
    otherwise sentences, the same for every seed.

    Args:
      files: {split: path}, train and perhaps dev and test.
      name: of the task. word, tag: columns, as for `files.read_sentences`.
      directory: the base of relative paths; "" is here.

    Raises FirthError for a missing file, what `read_sentences` raises, a tag that is no entity's
    where nearly all are, a train split that cannot be divided, and fewer than two tags.
    """
    if not files.get("train"):
        raise FirthError(
            "nothing to learn: give sentences with a word and its tag a line, "
            "--config.data.train=FILE (.conllu, .tsv, or any other ending for columns with white "
            "space between)"
        )
    splits = {
        split: read_sentences(_existing(path, directory), word, tag, options=OPTIONS)
        for split, path in files.items()
        if path
    }
    for sentences in splits.values():
        if (n := misspelt(sentences.tags)) is not None:
            raise FirthError(
                f"{sentences.source}:{sentences.lines[n]}: the tag {sentences.tags[n]!r} is "
                "neither O nor of the kind B-PER or I-PER, as nearly all others are; correct it"
            )
    labels = {tag for sentences in splits.values() for tag in sentences.tags}
    if marks_entities(labels):
        splits = {split: _in_bio(sentences) for split, sentences in splits.items()}
        labels = {tag for sentences in splits.values() for tag in sentences.tags}
    if len(labels) < 2:
        raise FirthError(
            f"{splits['train'].source}: every tag is {min(labels)!r}; expected two or more, or "
            f"another column ({OPTIONS[1]})"
        )
    if "dev" not in splits:
        train, dev = split_off(splits.pop("train"), dev_fraction)
        splits = {"train": train, "dev": dev} | splits
    ordered = tuple(sorted(labels, key=lambda tag: (tag != "O", tag)))
    task = Task(
        name=name or KIND,
        kind=KIND,
        text_columns=(word,),
        label_column=tag,
        metrics=metrics_of(ordered),
        files=dict(files),
        labels=ordered,
    )
    return task, splits


def _existing(name: str, directory: str) -> Path:
    path = find_file(directory or ".", name)
    if path is None:
        raise FirthError(f"{Path(directory or '.', name)}: no such file, nor .gz or .xz")
    return path


def _in_bio(sentences: Sentences) -> Sentences:
    if wrong := misplaced(sentences.split(sentences.tags)):
        log.info(
            "%s:%d: %s after %r is not %s, the scheme of most tags here; %s of %s break it, and an "
            "entity begins or ends there, as conlleval counts it",
            sentences.source,
            sentences.lines[wrong.word],
            repr(wrong.tag) if wrong.tag else "the end of the sentence",
            wrong.before,
            wrong.scheme,
            f"{wrong.count:,}",
            f"{len(sentences.tags):,}",
        )
    tags = [tag for one in sentences.split(sentences.tags) for tag in to_bio(one)]
    return dataclasses.replace(sentences, tags=tags)


def split_off(sentences: Sentences, fraction: float) -> tuple[Sentences, Sentences]:
    """(train, dev) in the order of the file; see `load_tagging`."""
    if not 0 < fraction < 1:
        raise FirthError(
            f"there is no dev split and data.dev_fraction={fraction:g}; set data.dev, or a "
            "fraction between 0 and 1 that is split off train"
        )
    units = sentences.documents
    units = units if len(units) >= FEW else np.arange(len(sentences))
    wanted = round(fraction * len(units))
    if not 0 < wanted < len(units):
        raise FirthError(
            f"{sentences.source}: {len(units)} sentences cannot be divided by data.dev_fraction="
            f"{fraction:g}; give a dev split with --config.data.dev=FILE"
        )
    order = np.argsort(random_bits(derive_key("dev split"), np.arange(len(units))))
    chosen = np.zeros(len(units), bool)
    chosen[order[:wanted]] = True
    number = np.searchsorted(units, np.arange(len(sentences)), "right") - 1
    return _part(sentences, ~chosen[number]), _part(sentences, chosen[number])


def _part(sentences: Sentences, chosen: np.ndarray) -> Sentences:
    """The chosen sentences, bool [S], in the same order."""
    sizes = np.diff(sentences.offsets)
    places = np.flatnonzero(np.repeat(chosen, sizes))
    starts = np.zeros(len(sentences), bool)
    starts[sentences.documents] = True
    documents = np.flatnonzero(starts[chosen])
    return dataclasses.replace(
        sentences,
        words=[sentences.words[i] for i in places],
        tags=[sentences.tags[i] for i in places],
        offsets=np.concatenate([[0], np.cumsum(sizes[chosen])]).astype(np.int64),
        documents=documents if len(documents) and not documents[0] else np.append(0, documents),
        lines=sentences.lines[places],
    )
