"""How good tags are, and how good the most frequent tag of each word is.

Entities are counted as the script conlleval counts them, by seqeval (Nakayama 2018).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from firth.data.tagging.files import Sentences
from firth.data.tagging.schemes import marks_entities, to_bio
from firth.data.tasks.overview import Baseline
from firth.data.tasks.task import Task

ENTITIES = ("entity_f1", "entity_precision", "entity_recall", "accuracy")
WORDS = ("accuracy",)
MOST_LABELS = 8  # to name with their counts


def metrics_of(labels: Sequence[str]) -> tuple[str, ...]:
    """The metrics of a task with these tags; the first chooses the best checkpoint."""
    return ENTITIES if marks_entities(labels) else WORDS


def score_tags(
    metrics: Sequence[str], gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """{metric: value} of the tags of sentences against those of a file, both as names.

    accuracy: the share of words whose tag is right. entity_precision, entity_recall, entity_f1: of
    entities, right where both ends and the type are. An entity that begins with I-X counts, as in
    conlleval. Without any entity on one side they are 0.
    """
    pairs = [pair for both in zip(gold, predicted, strict=True) for pair in zip(*both, strict=True)]
    found = {"accuracy": float(np.mean([a == b for a, b in pairs]))}
    if "entity_f1" in metrics:
        from seqeval import metrics as seqeval

        sides = [[to_bio(tags) for tags in side] for side in (gold, predicted)]
        for name in ("precision", "recall", "f1"):
            value = getattr(seqeval, f"{name}_score")(*sides, zero_division=0)
            found[f"entity_{name}"] = float(value)
    return {name: found[name] for name in metrics}


def by_type(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, dict]:
    """{type: {"precision", "recall", "f1", "entities"}} of entities, by type."""
    from seqeval.metrics import classification_report

    report = classification_report(
        [to_bio(tags) for tags in gold],
        [to_bio(tags) for tags in predicted],
        output_dict=True,
        zero_division=0,
    )
    names = {"precision": "precision", "recall": "recall", "f1-score": "f1", "support": "entities"}
    return {
        kind: {to: values[name].item() for name, to in names.items()}
        for kind, values in report.items()
        if not kind.endswith(" avg")
    }


class MostFrequent:
    """The tag that each word of a text has most often; for other words the most frequent tag.

    Of tags that are equally frequent the first in the alphabet.
    """

    def __init__(self, train: Sentences):
        counts = defaultdict(Counter)
        for word, tag in zip(train.words, train.tags, strict=True):
            counts[word][tag] += 1
        self._tags = {word: _most(tags) for word, tags in counts.items()}
        self.other = _most(Counter(train.tags))

    def __call__(self, sentences: Sentences) -> list[list[str]]:
        """The tags of sentences."""
        return sentences.split([self._tags.get(word, self.other) for word in sentences.words])


def _most(counts: Counter) -> str:
    return min(counts, key=lambda tag: (-counts[tag], tag))


def baselines(task: Task, splits: Mapping[str, Sentences]) -> dict[str, Baseline]:
    """The baseline of each split with tags, but train."""
    guess = MostFrequent(splits["train"])
    words = f"baseline (each word's most frequent tag in train, else {guess.other!r})"
    return {
        name: Baseline(
            words, score_tags(task.metrics, sentences.split(sentences.tags), guess(sentences))
        )
        for name, sentences in splits.items()
        if name != "train" and sentences.tags is not None
    }


def overview(task: Task, splits: Mapping[str, Sentences], unseen: Mapping[str, float]) -> list[str]:
    """Lines to read before a run; `unseen` is the share of words that have no id, by split.

    They count the tags of a split that train lacks, which no model can learn.
    """
    learnt = set(splits["train"].tags)
    lines = [f"tagging, {len(task.labels)} tags ({splits['train'].source})"]
    for name, sentences in splits.items():
        if sentences.tags is None:
            tags = "without tags"
        else:
            ordered = Counter(sentences.tags).most_common()
            tags = ", ".join(f"{tag} {count:,}" for tag, count in ordered[:MOST_LABELS])
            more = sum(count for _, count in ordered[MOST_LABELS:])
            tags += f" and {len(ordered) - MOST_LABELS} more with {more:,}" if more else ""
        unknown = f", {unseen[name]:.1%} of them unknown" if name in unseen else ""
        lines.append(
            f"{name}: {len(sentences):,} sentences, {len(sentences.words):,} words{unknown}; {tags}"
        )
        lacked = Counter(tag for tag in sentences.tags or () if tag not in learnt).most_common()
        if lacked:
            named = ", ".join(f"{tag} {count:,}" for tag, count in lacked[:MOST_LABELS])
            more = ", ..." if len(lacked) > MOST_LABELS else ""
            lines.append(f"{name}: train lacks these tags, so they cannot be learnt: {named}{more}")
    lines += [f"{name}: {found}" for name, found in baselines(task, splits).items()]
    return lines
