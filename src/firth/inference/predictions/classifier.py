"""What a fine-tuned model says of texts: a label, or several, with probabilities, or a score.

B rows of a batch, R rows, L length, N texts, C labels.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy.special import expit, softmax

from firth import recipe
from firth.data.labels.multilabel import THRESHOLD
from firth.data.packing.rows import Packed
from firth.data.tasks.buckets import Tokenised, starts_of
from firth.data.tasks.rows import Row
from firth.errors import FirthError
from firth.inference.batching import batch_tokens, pad_rows
from firth.inference.execution.ahead import computed, of_view
from firth.inference.inputs import Text
from firth.inference.predictions.reading import Reading
from firth.models.model import bound, family
from firth.objectives.finetune import Finetune, check_packing

if TYPE_CHECKING:
    from firth.inference.encoder import Encoder

log = logging.getLogger("firth")

HEAD, CHOICE = "classifier", "choice"
PACKED = ("tokens", "segments", "text", "weight")  # arrays of rows that texts share
SORTED_BATCHES = 32  # batches of texts sorted by length at a time


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction:
    """What the model says of one text.

    label: the likeliest label. probability: its probability. probabilities: {label: probability},
    the likeliest first. score: the number that a regression gives; then the others are None.
    labels: of a model that gives a text several, those whose probability is at least the
    threshold, the likeliest first; then label and probability are None.
    """

    label: str | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    score: float | None = None
    labels: tuple[str, ...] | None = None

    def __repr__(self):
        if self.labels is not None:
            return f"Prediction({', '.join(map(repr, self.labels)) or 'no label'})"
        if self.score is not None:
            return f"Prediction(score={self.score:.4f})"
        return f"Prediction({self.label!r}, {self.probability:.4f})"


class TextClassifier(Protocol):
    """What `firth predict` and `firth evaluate` need of a model that labels texts.

    source: where the model lies. encoder: that which reads the texts, or None.
    labels: their names in the order of the outputs, () for a regression.
    multilabel: whether a text has any number of them, each with a probability of its own.
    length: the most tokens of a text unless a reading says otherwise; max_length: the most that a
      reading may ask for. Both are None for a model that reads whole texts.
    """

    source: Path
    encoder: "Encoder | None"
    labels: tuple[str, ...]
    multilabel: bool
    length: int | None
    max_length: int | None

    def __call__(
        self, texts: Sequence[Text], reading: Reading, names: Sequence[str] | None = None
    ) -> tuple[np.ndarray, int]:
        """(probabilities [N, C] or scores [N, 1] as float64, number of texts that lost tokens).

        `names` are those of the texts in errors. Raises FirthError for no texts, a value that is no
        text, and a reading that the model does not allow.
        """

    def digest(self) -> str:
        """A digest of everything in the model that decides its predictions."""


class Classifier:
    """The classifier of an encoder, compiled once for each shape of its rows.

    Its attributes are those of `TextClassifier`.
    """

    def __init__(self, encoder: "Encoder"):
        """Raises FirthError for a model that cannot label texts."""
        check_classifier(encoder.saved)
        labels = label_names(encoder.saved)
        self._open(encoder, HEAD, labels, outputs=len(labels) or 1)

    def _open(self, encoder: "Encoder", head: str, labels: tuple[str, ...], outputs: int):
        """Set the attributes of a classifier of rows by this head, which has so many outputs."""
        saved = encoder.saved
        if head not in encoder.model.heads:
            raise FirthError(
                f"{saved.source} was loaded without its head {head!r}; load it with heads=True"
            )
        self.encoder, self.source, self.labels = encoder, saved.source, labels
        self.multilabel = saved.multilabel and head == HEAD
        self._outputs, self._named_bare = outputs, False
        trained = recipe.read(saved.source) if saved.layout == "workdir" else {}
        length = trained.get("data", {}).get("length") or encoder.max_length
        self.max_length = encoder.max_length
        self.length = min(length, self.max_length)
        self._objective = objective = Finetune(
            both_orders=trained.get("objective", {}).get("both_orders", False),
            special_counts=tuple(map(len, family(saved.spec["family"]).SPECIAL_TOKENS)),
            choices=head == CHOICE,
        )

        def logits(model, *arrays):
            if objective.choices:  # a row is a question with one choice
                arrays = [rows_BL[:, None] for rows_BL in arrays]
            batch = dict(zip(("tokens", "segments", "mask"), arrays, strict=True))
            return objective.logits(model, batch, train=False)

        key = (head, objective.both_orders, objective.special_counts)
        self._logits = encoder.program(key, lambda: bound(encoder.model, logits))

        def packed(model, *arrays):
            batch = dict(zip(PACKED, arrays, strict=True))
            return objective.logits(model, batch, train=False)

        self._packed = lambda: encoder.program(
            (*key, "packed"), lambda: bound(encoder.model, packed)
        )

    def __call__(
        self, texts: Sequence[Text], reading: Reading, names: Sequence[str] | None = None
    ) -> tuple[np.ndarray, int]:
        """(probabilities [N, C] or scores [N, 1] as float64, number of texts that lost tokens).

        `names` are those of the texts in errors. Raises FirthError for no texts, a value that is no
        text, a `max_length` that the model or the texts do not allow, `packed` of a model that
        cannot have it, and an output that is not finite. Warns of the first text without a token.
        """
        names = names or [f"text {i}" for i in range(len(texts))]
        rows, owners, cut = [], [], 0
        limit, encoded = reading.max_length or self.length, self._encode(texts, names)
        self._check_length(limit, max(map(len, encoded)))
        bare = [name for name, ids in zip(names, encoded, strict=True) if not all(map(len, ids))]
        if bare and not self._named_bare:
            log.warning("%s: no token in a text; it is labelled all the same", bare[0])
            self._named_bare = True
        for number, ids in enumerate(encoded):
            own, lost = reading.rows(self.encoder.template, ids, limit)
            rows += own
            owners += [number] * len(own)
            cut += lost
        run = functools.partial(self._run_packed, limit) if reading.packed else self._run
        logits_RC = run(rows, reading.batch_size)
        outputs_RC = self._probabilities(logits_RC) if self.labels else logits_RC
        outputs_NC = np.zeros((len(texts), outputs_RC.shape[1]))
        np.add.at(outputs_NC, owners, outputs_RC)
        outputs_NC /= np.bincount(owners)[:, None]
        self._check_finite(outputs_NC, names)
        return outputs_NC, cut

    def _probabilities(self, logits_RC: np.ndarray) -> np.ndarray:
        return expit(logits_RC) if self.multilabel else softmax(logits_RC, axis=1)

    def digest(self) -> str:
        """A digest of everything in the model that decides its predictions."""
        several = ["multilabel"] * self.multilabel
        return self.encoder.saved.digest(self.labels, self.encoder.tokenizer.digest, *several)

    def _check_finite(self, outputs_NC: np.ndarray, names: Sequence[str]):
        if len(bad := np.flatnonzero(~np.isfinite(outputs_NC).all(1))):
            raise FirthError(
                f"{names[bad[0]]}: what {self.encoder.saved.source} gives is not finite; the model "
                "has diverged"
            )

    def _encode(self, texts: Sequence[Text], names: Sequence[str]) -> list[list[np.ndarray]]:
        """The ids of each text, or of the two of a pair, encoded as in training."""
        parts = parts_of(texts, names)
        flat, sizes = self.encoder.tokenizer.encode_flat([*itertools.chain(*parts)])
        ids = iter(np.split(flat, np.cumsum(sizes)[:-1]))
        return [list(itertools.islice(ids, len(part))) for part in parts]

    def _check_length(self, limit: int, texts: int):
        fewest, most = self.encoder.template.size(texts) + texts, self.encoder.max_length
        if not fewest <= limit <= most:
            raise FirthError(
                f"max_length={limit} is outside {fewest} .. {most}: from the special tokens and a "
                "token of each text to the model's positions"
            )

    def _run(self, rows: list, batch_size: int) -> np.ndarray:
        """The logits float64 [R, C] of rows; those of similar length share a batch."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))

        def prepare(begin):
            chosen = order[begin : begin + batch_size]
            return chosen, pad_rows(self.encoder.pad([rows[i] for i in chosen]), batch_size)

        logits_RC = np.zeros((len(rows), self._outputs))
        prepared = map(prepare, range(0, len(order), batch_size))
        for chosen, logits_BC in computed(self._logits, self.encoder.params, prepared):
            logits_RC[chosen] = logits_BC[: len(chosen)]
        return logits_RC

    def _run_packed(self, limit: int, rows: list, batch_size: int) -> np.ndarray:
        """The same of rows that are packed into longer ones of `limit` tokens, all of one shape."""
        check_packing(self.encoder.saved.spec, self._objective.both_orders)
        ids, second = zip(*rows, strict=True)
        template, offsets = self.encoder.template, starts_of(np.array([len(one) for one in ids]))
        texts = Tokenised(
            np.concatenate(ids), offsets, np.array(second), None, limit, template.pad, truncated=0
        )
        view = Packed(
            texts,
            texts=limit // template.size(1),
            rows=lambda size: max(batch_tokens(size) // limit, 1),
        )
        logits_RC = np.zeros((len(rows), self._outputs))
        prepared = of_view(view, PACKED, batch_size)
        for batch, logits_BTC in computed(self._packed(), self.encoder.params, prepared):
            real_BT = batch["weight"] > 0
            logits_RC[batch["example"][real_BT]] = logits_BTC[real_BT]
        return logits_RC


def parts_of(texts: Sequence[Text], names: Sequence[str]) -> list[Sequence[str]]:
    """Each text as a tuple of one, and a pair as it is.

    Raises FirthError for no texts, and for a value that is no text, by its name in `names`.
    """
    parts = [(text,) if isinstance(text, str) else text for text in texts]
    for name, text, part in zip(names, texts, parts, strict=True):
        several = isinstance(part, tuple | list) and len(part) == 2 - isinstance(text, str)
        if not several or not all(isinstance(one, str) for one in part):
            raise FirthError(f"{name} is {text!r:.40}, expected a string or two of them")
    if not parts:
        raise FirthError("there are no texts")
    return parts


def check_classifier(saved) -> None:
    """Raise FirthError, saying what to do, for a `firth.weights.read.Saved` that labels no text."""
    source = saved.source
    if saved.tasks:
        raise FirthError(
            f"{source} has a head for each of several tasks, {', '.join(saved.tasks)}; choose one: "
            "--task NAME, or firth.load(..., task=NAME)"
        )
    if HEAD not in saved.heads:
        raise FirthError(
            f"{source} has no classifier (its heads: {', '.join(saved.heads) or 'none'}); "
            f"fine-tune it first: firth train --config finetune.py:init={source} "
            "--config.data.train=FILE --workdir DIR"
        )
    if saved.tokenizer_path is None:
        raise FirthError(f"{source} holds no tokenizer, which texts need")
    if saved.regression and saved.num_labels != 1:
        raise FirthError(f"{source} gives a text {saved.num_labels} numbers, expected one")
    if len(set(names := label_names(saved))) < len(names):
        raise FirthError(f"{source} has two labels of the same name: {', '.join(names)}")


def label_names(saved) -> tuple[str, ...]:
    """The names of a model's labels, LABEL_0 and so on where it has none; () for a regression."""
    if saved.regression:
        return ()
    return saved.labels or tuple(f"LABEL_{i}" for i in range(saved.num_labels))


def predict_rows(
    classifier: TextClassifier, rows: Iterable[Row], reading: Reading, batches: int | None = None
) -> Iterator[tuple[list[Row], np.ndarray, int]]:
    """(rows, their outputs [n, C], number of texts that lost tokens), window by window.

    A window has `batches` batches (None: SORTED_BATCHES). The outputs are those of the classifier,
    which raises the same errors.
    """
    rows, size = iter(rows), (batches or SORTED_BATCHES) * reading.batch_size
    while window := list(itertools.islice(rows, size)):
        names = [row.at for row in window]
        yield window, *classifier([row.text for row in window], reading, names)


def predict(
    encoder: "Encoder",
    texts: Text | Sequence[Text],
    *,
    top: int | None = None,
    threshold: float | None = None,
    **options,
) -> list[Prediction]:
    """What the model's classifier says of texts.

    Args:
      encoder: a model with a classifier.
      texts: a string, a pair (a tuple of two), or a list of strings and pairs.
      top: how many probabilities a prediction holds at most, the likeliest first; None: all.
      threshold: the probability from which on a text has a label, of a model that gives several;
        None: 0.5.
      options: the fields of `firth.inference.predictions.reading.Reading`: batch_size, max_length,
        long, stride, packed.

    Returns one `Prediction` for each text, in order. Warns of texts that lose tokens.

    Raises FirthError for a model without a classifier or tokenizer, for a value that is no text,
    and for an option out of range.
    """
    classifier, reading = encoder.classifier, Reading(**options)
    labels = classifier.labels
    if top is not None and top < 1:
        raise FirthError(f"top={top}: expected a positive number")
    least = checked_threshold(classifier, threshold)
    texts = [texts] if isinstance(texts, str | tuple) else list(texts)
    rows = (Row(f"text {i}", {}, text) for i, text in enumerate(texts))
    predictions, cut = [], 0
    for _, outputs_NC, lost in predict_rows(classifier, rows, reading):
        predictions += map(functools.partial(_prediction, labels, top, least), outputs_NC)
        cut += lost
    warn_of_cut(cut, len(texts), classifier, reading)
    return predictions


def checked_threshold(classifier: TextClassifier, threshold: float | None) -> float | None:
    """The probability from which on a text has a label; None for a model that gives one label.

    Raises FirthError for a threshold outside (0, 1), and for one of a model that gives one label.
    """
    if not classifier.multilabel:
        if threshold is not None:
            raise FirthError(
                f"threshold={threshold:g}: only models that give a text several labels have one; "
                f"{classifier.source} gives {'one' if classifier.labels else 'a score'}"
            )
        return None
    if threshold is not None and not 0 < threshold < 1:
        raise FirthError(f"threshold={threshold:g}: expected a probability between 0 and 1")
    return THRESHOLD if threshold is None else threshold


def _prediction(
    labels: tuple[str, ...], top: int | None, threshold: float | None, outputs_C: np.ndarray
) -> Prediction:
    if not labels:
        return Prediction(score=float(outputs_C[0]))
    order = np.argsort(-outputs_C, kind="stable")
    best = order[:top]
    probabilities = {labels[i]: float(outputs_C[i]) for i in best}
    if threshold is not None:
        chosen = tuple(labels[i] for i in order if outputs_C[i] >= threshold)
        return Prediction(probabilities=probabilities, labels=chosen)
    return Prediction(labels[best[0]], float(outputs_C[best[0]]), probabilities)


def warn_of_cut(
    cut: int,
    texts: int,
    classifier: TextClassifier,
    reading: Reading,
    options: tuple[str, str] = ("max_length", "long"),
) -> None:
    """Warn of texts that lost tokens; `options` is how the user spells what prevents it."""
    if not cut:
        return
    limit, most = reading.max_length or classifier.length, classifier.max_length
    ways = [f"{options[0]}={most} keeps more"] if limit < most else []
    ways += [f"{options[1]}=average reads all of a text"] if reading.long == "truncate" else []
    message = "%s of %s texts have more than %d tokens and were cut%s"
    log.warning(message, f"{cut:,}", f"{texts:,}", limit, "".join(f"; {way}" for way in ways))
