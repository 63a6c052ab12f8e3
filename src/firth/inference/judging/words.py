"""Models that tag words, judged on a split.

N sentences, W words, C tags.
"""

import itertools
from pathlib import Path

import numpy as np

from firth.data.tagging.load import load_tagging
from firth.errors import FirthError
from firth.inference.judging.judged import Judged, Wrong
from firth.inference.tagging.tagger import Tagger, check_labels, measure

MOST_TAGS = 20  # of a confusion matrix: those that are confused most often


def judge_words(workdir: Path, config, split: str, worst: int) -> Judged:
    """The tagger of a workdir on a split, with so many of the sentences that it tagged worst.

    Raises FirthError as `load_tagging` and `Tagger` do, and for a split that there is not.
    """
    data = config.data
    _, splits = load_tagging(
        {name: data[name] for name in ("train", "dev", "test")},
        name=data.task,
        word=data.text,
        tag=data.label,
        directory=data.dir,
        dev_fraction=data.dev_fraction,
    )
    if split not in splits:
        raise FirthError(f"the task has no split {split!r}; it has {', '.join(splits)}")
    sentences, tagger = splits[split], Tagger(str(workdir))
    check_labels(tagger.labels, sentences)
    said = [tags for _, window in tagger.windows(sentences) for tags in window]
    return of_tags(split, tagger.labels, sentences, said, worst)


def of_tags(split: str, labels, sentences, said: list[list[str]], worst: int) -> Judged:
    """The tags of sentences against those of their file; `labels` are the model's tags."""
    found = measure(labels, sentences, said)
    gold, words = sentences.split(sentences.tags), sentences.split(sentences.words)
    pairs = zip(gold, said, strict=True)
    wrong_N = np.array([sum(a != b for a, b in zip(*pair, strict=True)) for pair in pairs])
    words_N = np.array([len(one) for one in words])
    shown, confusion = confused(gold, said)
    order = [i for i in np.argsort(-wrong_N, kind="stable") if wrong_N[i]]
    return Judged(
        split,
        sentences.source,
        len(sentences),
        found["metrics"],
        words_N,
        1 - wrong_N / words_N,
        "words with the right tag",
        by_label=found["by_type"],
        labels=shown,
        confusion=confusion,
        worst=tuple(
            Wrong(
                {"sentence": " ".join(words[i])},
                _differing(words[i], gold[i], said[i]),
                _differing(words[i], said[i], gold[i]),
                f"{wrong_N[i]} of {words_N[i]} words",
            )
            for i in order[:worst]
        ),
        wrong=len(order),
    )


def confused(gold: list[list[str]], said: list[list[str]]) -> tuple[tuple[str, ...], np.ndarray]:
    """(tags [C], words by their tag and the one given, int [C, C]).

    Of more than MOST_TAGS tags those with the most errors are left.
    """
    golds, saids = (list(itertools.chain(*tags)) for tags in (gold, said))
    tags = sorted({*golds, *saids})
    place = {tag: i for i, tag in enumerate(tags)}
    counts = np.zeros((len(tags), len(tags)), int)
    np.add.at(counts, ([place[tag] for tag in golds], [place[tag] for tag in saids]), 1)
    errors = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    kept = np.sort(np.argsort(-errors, kind="stable")[:MOST_TAGS])
    return tuple(tags[i] for i in kept), counts[np.ix_(kept, kept)]


def _differing(words: list[str], tags: list[str], others: list[str]) -> str:
    """The words whose tags differ, with the first of both."""
    rows = zip(words, tags, others, strict=True)
    return ", ".join(f"{word}/{tag}" for word, tag, other in rows if tag != other)
