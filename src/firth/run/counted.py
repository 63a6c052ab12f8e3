"""Train and measure a model that is counted, not stepped: an n-gram model.

    firth train --config ngram.py:order=5 --workdir runs/kn5 --config.data.store=train/

One pass counts, one smooths; for maximum_entropy L-BFGS takes the place of the second. A run that
was killed begins again; the model appears as a whole.
"""

import json
import logging
import shutil
import time
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from firth import recipe
from firth.data.corpus.store import open_store
from firth.data.corpus.stream import Stream, characters, read_stream
from firth.errors import FirthError
from firth.models.ngram import files, maxent
from firth.models.ngram.counts import count
from firth.models.ngram.smoothing import Smoothing, estimate
from firth.run.recorded import record, remeasured
from firth.run.workdir import check_folder, discard_unbegun, lock_workdir
from firth.storage.local import write_text
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.load import load_tokenizer
from firth.training.journal import Journal, describe_environment, read_journal

log = logging.getLogger("firth")


def is_counted(config) -> bool:
    """Whether a config is that of an n-gram model."""
    return config.get("model", {}).get("family") == files.FAMILY


def train(config, workdir: Path) -> dict[str, float]:
    """Count and smooth; returns the measures of held-out text, {} without such a text.

    Raises FirthError for bad input; the workdir then holds no new model.
    """
    config = recipe.located(config)
    check_folder(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    with lock_workdir(workdir):
        try:
            return _train(config, workdir)
        finally:
            discard_unbegun(workdir)


def _train(config, workdir: Path) -> dict[str, float]:
    began, spec = time.perf_counter(), dict(config.model)
    smoothing = _smoothing(spec)
    if not config.data.store:
        raise FirthError(
            "data.store is not set; prepare a corpus with `firth prepare` and give "
            "--config.data.store=DIR"
        )
    store = open_store(config.data.store)
    tokenizer = store.tokenizer()
    held = None
    if config.data.heldout_store:
        held = _read(config.data.heldout_store, tokenizer, config.data)
    if files.is_ngram(workdir):
        record(config, workdir)  # raises if it is another run's
        if (workdir / "metrics.jsonl").is_file() and (entries := read_journal(workdir)):
            log.info("%s holds this model; choose another --workdir to count again", workdir)
            found = {k: v for k, v in entries[-1].items() if k.startswith("eval/")}
            return {name.removeprefix("eval/"): value for name, value in found.items()}
    text = read_stream(store, tokenizer, config.data.ends)
    counts = count(text.tokens, text.starts, tokenizer.vocab_size, spec["order"])
    if isinstance(smoothing, maxent.MaximumEntropy):
        model, _ = maxent.fit(counts, smoothing)
    else:
        model = estimate(counts, smoothing)
    results = measure(model, held, tokenizer, "heldout") if held else {}
    store.check_unchanged()
    record(config, workdir)
    write_text(workdir / "env.txt", f"{describe_environment()}steps: 1\n")
    shutil.rmtree(workdir / "tokenizer", ignore_errors=True)
    tokenizer.save(workdir / "tokenizer")
    files.save(model, workdir, ends=config.data.ends, smoothing=asdict(smoothing))
    ngrams = {f"train/ngrams_{n}": len(keys) for n, keys in enumerate(model.keys, 1)}
    seconds = {"perf/seconds": round(time.perf_counter() - began, 3)}
    journal = Journal(workdir, 0, tensorboard=False)
    said = {f"eval/{name}": value for name, value in results.items()}
    journal.write(1, {"train/tokens": len(text)} | ngrams | seconds | said)
    journal.close()
    log.info(
        "counted %s tokens: %s n-grams of up to %d in %.1f s",
        *(f"{len(text):,}", f"{sum(ngrams.values()):,}", model.order, seconds["perf/seconds"]),
    )
    if held:
        log.info("held out: perplexity %.2f", results["heldout/lm_perplexity"])
    return results


def _smoothing(spec: dict) -> Smoothing | maxent.MaximumEntropy:
    """The smoothing of a model section; FirthError for a field that it does not have."""
    spec = {k: v for k, v in spec.items() if k not in ("family", "order")}
    spec["name"] = spec.pop("smoothing", Smoothing.name)
    kind = maxent.MaximumEntropy if spec["name"] == maxent.NAME else Smoothing
    known = {field.name for field in fields(kind)}
    if unknown := sorted(spec.keys() - known):
        raise FirthError(f"model.{unknown[0]} is no field of an n-gram model")
    return kind(**{k: tuple(v) if isinstance(v, list | tuple) else v for k, v in spec.items()})


def _read(path: str, tokenizer: Tokenizer, data) -> Stream:
    store = open_store(path)
    if store.tokenizer().digest != tokenizer.digest:
        raise FirthError(
            f"data.heldout_store={path} was made with another tokenizer than the model; prepare "
            "both texts with the same one"
        )
    return read_stream(store, tokenizer, data.ends)


def measure(model, stream: Stream, tokenizer: Tokenizer, name: str) -> dict[str, float]:
    """The measures of a text, {"<name>/lm_perplexity": ...}; see `measures`."""
    log_probs = model.score(stream.tokens, stream.starts)
    found = measures(log_probs, stream, tokenizer)
    return {f"{name}/{metric}": value for metric, value in found.items()}


def measures(log_probs, stream: Stream, tokenizer: Tokenizer) -> dict[str, float]:
    """What is said of a language model on a text, from the log-probability of each token.

    A token without one, NaN, does not count.

    lm_loss: nats a token, ends included. lm_perplexity: its exponential.
    bits_per_character: bits over the characters of the text.
    tokens, unknown_tokens: how many were predicted, and how many of them are the unknown word.
    known_perplexity: of the other tokens alone, which KenLM calls "excluding OOVs".
    """
    scored = ~np.isnan(log_probs)
    unknown = stream.tokens == (-1 if tokenizer.unk_id is None else tokenizer.unk_id)
    loss = -float(np.mean(log_probs[scored]))
    bits = -float(np.sum(log_probs[scored])) / np.log(2)
    known = log_probs[scored & ~unknown]
    return {
        "lm_loss": loss,
        "lm_perplexity": float(np.exp(loss)),
        "bits_per_character": float(bits / characters(stream, tokenizer)),
        "known_perplexity": float(np.exp(-np.mean(known))) if len(known) else float("nan"),
        "tokens": int(scored.sum()),
        "unknown_tokens": int((scored & unknown).sum()),
    }


def evaluate(workdir: Path, changes=()) -> dict[str, float]:
    """Measure the model of a workdir on `data.heldout_store`; writes `evaluation.json`."""
    workdir = Path(workdir)
    config, changed = remeasured(recipe.read(workdir), changes)
    if not config.data.heldout_store:
        raise FirthError(
            f"{workdir} has no held-out text; give one: --config.data.heldout_store=STORE"
        )
    model, _ = files.load(workdir)
    tokenizer = load_tokenizer(workdir / "tokenizer")
    stream = _read(config.data.heldout_store, tokenizer, config.data)
    results = changed | measure(model, stream, tokenizer, "heldout")
    write_text(workdir / "evaluation.json", json.dumps(results, indent=2) + "\n")
    return results
