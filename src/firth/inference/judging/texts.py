"""Models that label texts and pairs, once or more, give them scores, or choose: judged on a split.

N examples, C labels or choices.
"""

from pathlib import Path

import numpy as np

from firth.data.labels.multilabel import THRESHOLD, written
from firth.data.tasks.load import find_task
from firth.data.tasks.split import load_splits
from firth.data.tasks.task import Examples
from firth.errors import FirthError
from firth.inference.judging.judged import Judged, Wrong, calibrate, count_words
from firth.inference.predictions.classifier import SORTED_BATCHES
from firth.inference.predictions.evaluate import measured
from firth.inference.predictions.load import load_classifier
from firth.inference.predictions.reading import Reading


def judge_texts(workdir: Path, config, split: str, worst: int) -> Judged:
    """The model of a workdir on a split of its config's task, with so many of its worst examples.

    Raises FirthError as the readers of the task do, and for a split without labels.
    """
    data = config.data
    splits = load_splits(find_task(data), data.get("dir") or None, data.get("dev_fraction", 0.0))
    if split not in splits or splits[split].labels is None:
        known = ", ".join(name for name, one in splits.items() if one.labels is not None)
        raise FirthError(f"the task has no labelled split {split!r}; it has {known}")
    examples = splits[split]
    size = len(examples.choices[0]) if examples.choices else 0
    classifier = load_classifier(str(workdir), choices=size)
    outputs_NC = outputs_of(classifier, texts_of(examples))
    if classifier.multilabel:
        return _of_several(split, examples, classifier.labels, outputs_NC, worst)
    if classifier.labels:
        return _of_labels(split, examples, classifier.labels, outputs_NC, worst)
    return _of_scores(split, examples, outputs_NC[:, 0], worst)


def texts_of(examples: Examples) -> list:
    """The examples as a classifier takes them: texts, pairs, or contexts with their choices."""
    seconds = examples.choices or examples.texts_b
    if seconds is None:
        return list(examples.texts_a)
    return list(zip(examples.texts_a, seconds, strict=True))


def outputs_of(classifier, texts: list) -> np.ndarray:
    """What a `TextClassifier` says of texts, float64 [N, C], some batches of them at a time."""
    reading = Reading()
    size = SORTED_BATCHES * reading.batch_size
    starts = range(0, len(texts), size)
    return np.concatenate([classifier(texts[i : i + size], reading)[0] for i in starts])


def _of_labels(split, examples, labels, probability_NC, worst: int) -> Judged:
    gold_N, said_N = examples.labels, probability_NC.argmax(1)
    each = np.arange(len(gold_N))
    right_N, sure_N = gold_N == said_N, probability_NC[each, gold_N]
    found = measured(labels, said_N, gold_N)
    order = [i for i in np.argsort(sure_N, kind="stable") if not right_N[i]]
    return Judged(
        split,
        examples.source,
        len(gold_N),
        found.metrics,
        words_of(examples),
        right_N.astype(float),
        by_label=found.by_label,
        labels=tuple(labels),
        confusion=np.array(found.confusion),
        calibration=calibrate(probability_NC.max(1), right_N),
        worst=tuple(
            Wrong(
                shown_texts(examples, i),
                labels[gold_N[i]],
                labels[said_N[i]],
                f"right: {sure_N[i]:.1%}; what it said: {probability_NC[i].max():.1%}",
            )
            for i in order[:worst]
        ),
        wrong=len(order),
    )


def _of_several(split, examples, labels, probability_NC, worst: int) -> Judged:
    gold_NC, said_NC = examples.labels, (probability_NC >= THRESHOLD).astype(np.int32)
    right_N = (gold_NC == said_NC).all(1)
    loss_N = -np.log(np.clip(np.abs(1 - gold_NC - probability_NC), 1e-12, 1)).mean(1)
    found = measured(labels, said_NC, gold_NC)
    order = [i for i in np.argsort(-loss_N, kind="stable") if not right_N[i]]
    return Judged(
        split,
        examples.source,
        len(gold_NC),
        found.metrics,
        words_of(examples),
        right_N.astype(float),
        "exact match",
        by_label=found.by_label,
        worst=tuple(
            Wrong(
                shown_texts(examples, i),
                written(labels, gold_NC[i]) or "none",
                written(labels, said_NC[i]) or "none",
                f"loss {loss_N[i]:.3f}",
            )
            for i in order[:worst]
        ),
        wrong=len(order),
    )


def _of_scores(split, examples, said_N, worst: int) -> Judged:
    gold_N = examples.labels.astype(np.float64)
    order = np.argsort(-np.abs(said_N - gold_N), kind="stable")
    return Judged(
        split,
        examples.source,
        len(gold_N),
        measured((), said_N, gold_N).metrics,
        words_of(examples),
        scores=np.stack([gold_N, said_N], axis=1),
        worst=tuple(
            Wrong(shown_texts(examples, i), f"{gold:g}", f"{said:.2f}", f"{said - gold:+.2f}")
            for i, gold, said in zip(order[:worst], gold_N[order], said_N[order], strict=False)
        ),
        wrong=len(gold_N),
    )


def words_of(examples: Examples) -> np.ndarray:
    """The words of each example, int [N]; of a question with all its choices."""
    columns = [examples.texts_a]
    if examples.choices:
        columns.append([" ".join(choices) for choices in examples.choices])
    elif examples.texts_b is not None:
        columns.append(examples.texts_b)
    return count_words(*columns)


def shown_texts(examples: Examples, number: int) -> dict[str, str]:
    """{name: text} of an example."""
    first = examples.texts_a[number]
    if examples.choices:
        choices = examples.choices[number]
        return {"context": first} | {f"choice {i}": text for i, text in enumerate(choices)}
    if examples.texts_b is None:
        return {"text": first}
    return {"first": first, "second": examples.texts_b[number]}
