"""Compare language models on one text: each alone, every pair and all of them, mixed.

    firth evaluate --models runs/kn5,runs/txl --data test/ --tune valid/ --cache 200

M models, T tokens, K values of theta.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from firth.data.corpus.store import open_store
from firth.data.corpus.stream import ENDS, Stream, read_stream
from firth.errors import FirthError
from firth.inference.language import dynamic as dynamically
from firth.inference.language import neural_cache as neural
from firth.inference.language.mixture import cache, mix, tune
from firth.inference.language.models import load_model, short_names
from firth.inference.language.ngram import NgramLM
from firth.inference.score import kind_of, remembers, score_stream, score_texts, tokenizer_of
from firth.run.counted import measures


@dataclass(frozen=True)
class Row:
    """What was found of one model or mixture.

    models: their names. weights: of sum 1. measures: see `firth.run.counted.measures`. pseudo:
    whether a masked model is among them. ends: whether the ends of texts count.
    """

    models: tuple[str, ...]
    weights: tuple[float, ...]
    measures: dict[str, float]
    pseudo: bool
    ends: bool


@dataclass(frozen=True)
class Member:
    """What may take part in a mixture.

    log_probs: its log-probabilities float64 [T] of a stream; [K, T] of a neural cache.
    cache_of: the number of the model whose states a neural cache compares.
    pseudo: whether they are pseudo-log-likelihoods.
    """

    name: str
    log_probs: Callable[[Stream], np.ndarray]
    cache_of: int | None = None
    pseudo: bool = False


def compare(
    sources: Sequence[str],
    data: str,
    *,
    tuned_on: str | None = None,
    caches: Sequence[int] = (),
    neural_cache: neural.NeuralCache | None = None,
    dynamic: dynamically.Dynamic | None = None,
    window: int = 128,
    ends: str = "sentence",
    dtype: str | None = None,
) -> list[Row]:
    """Measure models on a store: one by one, in every pair with a model, and all together.

    Args:
      sources: what `firth evaluate --models` names, workdirs or directories of models.
      data: the store to measure.
      tuned_on: a store on which EM finds the weights of each mixture; without one the
        probabilities are averaged, as in an ensemble.
      caches: sizes of unigram caches, each of which takes part like a model.
      neural_cache: adds one of each neural model with memory. Without a theta, the likeliest one
        on `tuned_on` is taken, in a mixture of the model and the cache.
      dynamic: adds each such model a second time, as it goes on learning from the text.
      window: tokens that a neural model reads at once; see `score_stream`.
      ends: what the end token ends, "sentence" or "document".
      dtype: of the computation of neural models; see `firth.load`.

    All models must have the tokenizer of the stores. Where a masked or a permutation model is among
    them, the ends of texts count for none, since such a model does not predict them. A masked model
    gives each token its probability between all others (pseudo-log-likelihood), an ELMo the mean of
    both directions: a mixture with them, like themselves, is no distribution over texts. Raises
    FirthError for other tokenizers, for models that predict no tokens, and where no model has what
    an option needs.
    """
    names = short_names(sources)
    stores = [open_store(path) for path in (data, tuned_on) if path]
    tokenizer = stores[0].tokenizer()
    models = [load_model(source, dtype=dtype) for source in sources]
    for place, own in [(store.path, store.tokenizer()) for store in stores] + [
        (source, tokenizer_of(model)) for source, model in zip(sources, models, strict=True)
    ]:
        if own is None or own.digest != tokenizer.digest:
            raise FirthError(
                f"{place} has another tokenizer than {data}; models are compared on the same tokens"
            )
    for source, model in zip(sources, models, strict=True):
        if isinstance(model, NgramLM) and model.ends != ends:
            raise FirthError(
                f"{source} was counted with data.ends={model.ends!r}, but the text has --ends "
                f"{ends}; expected one of {', '.join(ENDS)}, the same for all"
            )
    streams = [read_stream(store, tokenizer, ends) for store in stores]
    members = _models(names, models, window, dynamic)
    alone = len(members)
    members += _caches(members, models, caches, neural_cache, window)
    found = [[member.log_probs(stream) for member in members] for stream in streams]
    _choose_theta(members, found, tuned_on)
    found = [_aligned(rows) for rows in found]
    together = [(m,) for m in range(alone)]
    pairs = itertools.combinations(range(len(members)), 2)
    together += [pair for pair in pairs if pair[0] < alone]
    if len(members) > 2:
        together.append(tuple(range(len(members))))
    rows = []
    for numbers in together:
        chosen = list(numbers)
        equal = np.full(len(chosen), 1 / len(chosen))
        weights = tune(found[1][chosen]) if tuned_on and len(chosen) > 1 else equal
        mixed = mix(found[0][chosen], weights)
        row = Row(
            models=tuple(members[m].name for m in chosen),
            weights=tuple(map(float, weights)),
            measures=measures(mixed, streams[0], tokenizer),
            pseudo=any(members[m].pseudo for m in chosen),
            ends=not np.isnan(mixed).any(),
        )
        rows.append(row)
    return rows


def _models(names, models, window: int, dynamic) -> list[Member]:
    """The models as they are, and those that learn from the text."""

    def static(model, stream):
        if isinstance(model, NgramLM):
            return model.log_probs(stream)
        if kind_of(model) == "causal":
            return score_stream(model, stream.tokens, min(window, model.max_length))
        return score_texts(model, stream, window)

    found = [
        Member(name, partial(static, model), pseudo=kind_of(model) in ("pseudo", "bidirectional"))
        for name, model in zip(names, models, strict=True)
    ]
    if dynamic:
        trained_on = _training_text(dynamic, models[0].tokenizer) if dynamic.train else None

        def learning(model, stream):
            return dynamically.score(model, stream.tokens, dynamic, trained_on)

        found += [
            Member(f"{names[m]} dynamic", partial(learning, models[m]))
            for m in _remembering(models, "--dynamic")
        ]
    return found


def _aligned(log_probs: Sequence[np.ndarray]) -> np.ndarray:
    """float64 [M, T], NaN for all where one model has no score."""
    log_probs_MT = np.stack(log_probs)
    log_probs_MT[:, np.isnan(log_probs_MT).any(0)] = np.nan
    return log_probs_MT


def _caches(members, models, sizes, neural_cache, window: int) -> list[Member]:
    """Unigram caches, and neural caches of the models."""

    def repeated(size, stream):
        return cache(stream.tokens, size)

    def similar(model, stream):
        return neural_cache.score(model, stream.tokens, window)

    found = [Member(f"cache {size}", partial(repeated, size)) for size in sizes]
    if neural_cache:
        found += [
            Member(f"{members[m].name} neural cache", partial(similar, models[m]), cache_of=m)
            for m in _remembering(models, "--neural-cache")
        ]
    return found


def _remembering(models, option: str) -> list[int]:
    """The numbers of the models with memory; FirthError if there is none."""
    found = [
        m
        for m, model in enumerate(models)
        if not isinstance(model, NgramLM) and kind_of(model) == "causal" and remembers(model)
    ]
    if not found:
        raise FirthError(f"{option} needs a model with memory, such as a recurrent network")
    return found


def _training_text(dynamic, tokenizer) -> Stream:
    store = open_store(dynamic.train)
    if store.tokenizer().digest != tokenizer.digest:
        raise FirthError(f"--dynamic: train={dynamic.train} has another tokenizer than the models")
    return read_stream(store, tokenizer, "sentence")


def _choose_theta(members, found, tuned_on) -> None:
    """Leave of each neural cache, [K, T], the row that is the best beside its model: [T]."""
    for number, member in enumerate(members):
        if member.cache_of is None:
            continue
        best = 0
        if tuned_on:
            model_T = found[1][member.cache_of]
            pairs = [np.stack([model_T, cache_T]) for cache_T in found[1][number]]
            best = int(np.argmax([mix(pair, tune(pair)).mean() for pair in pairs]))
        for rows in found:
            rows[number] = rows[number][best]


def table(rows: Sequence[Row]) -> str:
    """The rows as text: perplexity, bits per character and the weights of each mixture."""
    said = [" + ".join(row.models) + " *" * row.pseudo for row in rows]
    width = max(map(len, [*said, "models"]))
    lines = [f"{'models':<{width}}  perplexity  bits/char  weights"]
    for name, row in zip(said, rows, strict=True):
        weights = " ".join(f"{weight:.3f}" for weight in row.weights)
        figures = row.measures["lm_perplexity"], row.measures["bits_per_character"]
        lines.append(f"{name:<{width}}  {figures[0]:>10.2f}  {figures[1]:>9.4f}  {weights}")
    last, ends = rows[0].measures, "included" if rows[0].ends else "left out"
    lines.append(
        f"\n{last['tokens']:,} tokens, ends {ends}; {last['unknown_tokens']:,} of them are the "
        "unknown word, which counts as any other"
    )
    if any(row.pseudo for row in rows):
        lines.append(
            "* pseudo-perplexity: a masked model knows all other words of a text, an ELMo half the "
            "time those behind; neither predicts its end"
        )
    return "\n".join(lines)
