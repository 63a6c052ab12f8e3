"""Compare language models on one text: each alone, every pair and all of them, mixed.

    firth evaluate --models runs/kn5,runs/txl --data test/ --tune valid/ --cache 200

M models, T tokens.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.data.corpus.store import open_store
from firth.data.corpus.stream import ENDS, Stream, read_stream
from firth.errors import FirthError
from firth.inference.language.mixture import cache, mix, tune
from firth.inference.language.models import load_model
from firth.inference.language.ngram import NgramLM
from firth.inference.score import score_stream
from firth.run.counted import measures


@dataclass(frozen=True)
class Row:
    """models: their names. weights: of sum 1. measures: see `firth.run.counted.measures`."""

    models: tuple[str, ...]
    weights: tuple[float, ...]
    measures: dict[str, float]


def compare(
    sources: Sequence[str],
    data: str,
    *,
    tuned_on: str | None = None,
    caches: Sequence[int] = (),
    window: int = 128,
    ends: str = "sentence",
) -> list[Row]:
    """Measure models on a store: one by one, in every pair with a model, and all together.

    Args:
      sources: what `firth evaluate --models` names, workdirs or directories of models.
      data: the store to measure.
      tuned_on: a store on which EM finds the weights of each mixture; without one the
        probabilities are averaged, as in an ensemble.
      caches: sizes of unigram caches, each of which takes part like a model.
      window: tokens that a neural model reads at once; see `score_stream`.
      ends: what the end token ends, "sentence" or "document".

    All models must have the tokenizer of the stores. Raises FirthError where they have not, and for
    models that give no probabilities of a text.
    """
    names = [Path(source).name or str(source) for source in sources]
    names = list(sources) if len(set(names)) < len(names) else names
    if not sources or len(set(names)) < len(names):
        raise FirthError(f"--models {','.join(sources)}: expected different models")
    stores = [open_store(path) for path in (data, tuned_on) if path]
    tokenizer = stores[0].tokenizer()
    models = [load_model(source) for source in sources]
    for place, own in [(store.path, store.tokenizer()) for store in stores] + [
        (source, model.tokenizer) for source, model in zip(sources, models, strict=True)
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
    found = [_log_probs(models, stream, caches, window) for stream in streams]
    names += [f"cache {size}" for size in caches]
    together = [(m,) for m in range(len(sources))]
    pairs = itertools.combinations(range(len(names)), 2)
    together += [pair for pair in pairs if pair[0] < len(sources)]
    if len(names) > 2:
        together.append(tuple(range(len(names))))
    rows = []
    for members in together:
        chosen = list(members)
        equal = np.full(len(chosen), 1 / len(chosen))
        weights = tune(found[1][chosen]) if tuned_on and len(chosen) > 1 else equal
        mixed = mix(found[0][chosen], weights)
        said = measures(mixed, streams[0], tokenizer)
        rows.append(Row(tuple(names[m] for m in members), tuple(map(float, weights)), said))
    return rows


def _log_probs(models, stream: Stream, caches, window: int) -> np.ndarray:
    """float64 [M, T]: of each model and of each cache."""
    rows = [
        model.log_probs(stream)
        if isinstance(model, NgramLM)
        else score_stream(model, stream.tokens, min(window, model.max_length))
        for model in models
    ]
    return np.stack(rows + [cache(stream.tokens, size) for size in caches])


def table(rows: Sequence[Row]) -> str:
    """The rows as text: perplexity, bits per character and the weights of each mixture."""
    said = [" + ".join(row.models) for row in rows]
    width = max(map(len, [*said, "models"]))
    lines = [f"{'models':<{width}}  perplexity  bits/char  weights"]
    for name, row in zip(said, rows, strict=True):
        weights = " ".join(f"{weight:.3f}" for weight in row.weights)
        figures = row.measures["lm_perplexity"], row.measures["bits_per_character"]
        lines.append(f"{name:<{width}}  {figures[0]:>10.2f}  {figures[1]:>9.4f}  {weights}")
    last = rows[0].measures
    lines.append(
        f"\n{last['tokens']:,} tokens, ends included; {last['unknown_tokens']:,} of them are the "
        "unknown word, which counts as any other"
    )
    return "\n".join(lines)
