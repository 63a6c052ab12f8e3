"""Train and measure a logistic regression of texts.

    firth train --config logistic.py --workdir runs/logistic --config.data.train=train.csv

One pass counts the features of the examples; the solver runs once for each strength of the penalty.
A run that was killed begins again; the model appears as a whole.
"""

import dataclasses
import json
import logging
import time
from pathlib import Path

import numpy as np

from firth import recipe
from firth.data.submissions.predictions import save_predictions
from firth.data.tasks.load import find_task
from firth.data.tasks.metrics import score
from firth.data.tasks.overview import Baseline, baselines, figures, overview
from firth.data.tasks.split import load_splits
from firth.data.tasks.task import Examples, Task
from firth.errors import FirthError
from firth.models.logistic import files
from firth.models.logistic.features import Features, idf_of, matrix, vocabulary, weighted
from firth.models.logistic.model import Logistic, check_weighting, fit
from firth.run.recorded import record
from firth.run.workdir import check_folder, discard_unbegun, lock_workdir
from firth.storage.local import write_text
from firth.training.journal import Journal, describe_environment

log = logging.getLogger("firth")
SUMMARY = "summary.json"
OTHER = ("family", "weighting", "min_texts")  # fields of the model section that are no Features


def is_logistic(config) -> bool:
    """Whether a config is that of a logistic regression."""
    return config.get("model", {}).get("family") == files.FAMILY


def train(config, workdir: Path) -> dict[str, float]:
    """Fit on train, choose the penalty on dev, score test; returns {"<split>/<metric>": value}.

    Writes the model, `predictions/<test split>.tsv`, `baselines.json` and `summary.json`: strengths
    with what each gives on dev, metrics, baselines, and the heaviest features of each label.
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
    features = _features(spec)
    check_weighting(spec["weighting"])
    _check(config, spec)
    task = _task(config.data)
    if files.is_logistic(workdir) and (workdir / SUMMARY).is_file():
        record(config, workdir)  # raises if it is another run's
        log.info("%s holds this model; choose another --workdir to train again", workdir)
        return json.loads((workdir / SUMMARY).read_text())["metrics"]
    splits = load_splits(task, config.data.dir or None, config.data.dev_fraction)
    for line in overview(task, splits, {}, 0, bool(task.dev_splits)):
        log.info("%s", line)
    dev = task.dev_splits[0] if task.dev_splits else "dev"
    best = f"{dev}/{task.main_metric}"
    model, chosen = _fitted(config, features, task, splits["train"], splits[dev])
    constant, metrics, predictions = baselines(task, splits), {}, {}
    for name in constant:  # the splits with labels, but train
        predictions[name], found = measure(model, splits[name])
        metrics |= {f"{name}/{metric}": value for metric, value in found.items()}
    heaviest = model.heaviest(config.heaviest)

    record(config, workdir)
    write_text(workdir / "env.txt", f"{describe_environment()}steps: 1\n")
    files.save(model, workdir, best, min_texts=spec["min_texts"], l2=chosen["l2"])
    for name, found in predictions.items():
        if not name.startswith("dev"):
            save_predictions(workdir, name, task, found)
    seconds = round(time.perf_counter() - began, 3)
    _journal(workdir, model, len(splits["train"]), chosen["l2"], metrics, seconds)
    summary = {"features": len(model.names), "seconds": seconds, **chosen, "metrics": metrics}
    summary["baselines"] = {name: dataclasses.asdict(one) for name, one in constant.items()}
    measures = {name: dict(one.metrics) for name, one in constant.items()}
    write_text(workdir / "baselines.json", json.dumps(measures, indent=2) + "\n")
    summary["heaviest"] = {label: dict(found) for label, found in heaviest.items()}
    write_text(workdir / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
    _say(task, len(model.names), chosen, metrics, constant, heaviest, seconds)
    return metrics


def _features(spec: dict) -> Features:
    """The features of a model section; FirthError for a field that it does not have."""
    fields = {name: value for name, value in spec.items() if name not in OTHER}
    known = {field.name for field in dataclasses.fields(Features)}
    if unknown := sorted(fields.keys() - known):
        raise FirthError(f"model.{unknown[0]} is no field of a logistic regression")
    return Features(**fields)


def _check(config, spec: dict) -> None:
    """Raise FirthError for a number out of range."""
    if not config.l2 or not all(strength > 0 for strength in config.l2):
        raise FirthError(
            f"l2={tuple(config.l2)}: expected at least one strength, each above 0, as in "
            "--config.l2=(0.1,1.0,10.0)"
        )
    for name, value in (("model.min_texts", spec["min_texts"]), ("iterations", config.iterations)):
        if value < 1:
            raise FirthError(f"{name}={value}: expected 1 or more")
    if config.heaviest < 0:
        raise FirthError(f"heaviest={config.heaviest}: expected 0 or more")


def _task(data) -> Task:
    task = find_task(data, "logistic.py")
    if task.kind == "choice":
        raise FirthError(
            f"task {task.name!r} has questions with choices, and a logistic regression labels "
            "texts; use finetune.py"
        )
    if task.kind == "multilabel":
        raise FirthError(
            f"task {task.name!r} has several labels of a text (column {task.label_column!r}), and "
            "a logistic regression gives one; use finetune.py"
        )
    if task.kind != "classification":
        raise FirthError(
            f"task {task.name!r} has scores (column {task.label_column!r}), and a logistic "
            "regression gives labels; use finetune.py, or --config.data.kind=classification if "
            "these numbers are labels"
        )
    return task


def _fitted(config, features: Features, task: Task, train: Examples, dev: Examples):
    """(the model that is best on dev, {"l2": its strength, "grid": {strength: metric on dev}})."""
    weighting = config.model.weighting
    counted = [features.of_texts(one) for one in texts_of(train)]
    names = vocabulary(counted, config.model.min_texts)
    if not names:
        raise FirthError(
            f"{train.source}: no feature occurs in {config.model.min_texts} texts "
            "(model.min_texts); give more texts, or a smaller number"
        )
    counts_NF = matrix(counted, {name: i for i, name in enumerate(names)})
    idf_F = idf_of(counts_NF) if weighting == "tfidf" else None
    inputs_NF = weighted(counts_NF, weighting, idf_F)
    best, grid = None, {}
    model = Logistic(
        features=features,
        texts=len(task.text_columns),
        weighting=weighting,
        names=names,
        labels=task.labels,
        weights=np.zeros((len(task.labels), len(names))),
        biases=np.zeros(len(task.labels)),
        idf=idf_F,
    )
    dev_NF = model.inputs(texts_of(dev))
    for l2 in sorted(set(config.l2), reverse=True):  # of equal ones the strongest
        weights_CF, biases_C = fit(inputs_NF, train.labels, len(task.labels), l2, config.iterations)
        predicted_N = (dev_NF @ weights_CF.T + biases_C).argmax(1)
        grid[f"{l2:g}"] = score(task.metrics, predicted_N, dev.labels)[task.main_metric]
        log.info("l2=%g: dev %s %.4f", l2, task.main_metric, grid[f"{l2:g}"])
        if best is None or grid[f"{l2:g}"] > grid[f"{best[0]:g}"]:
            best = l2, weights_CF, biases_C
    l2, weights_CF, biases_C = best
    if len(grid) > 1 and l2 in (min(config.l2), max(config.l2)):
        log.info("l2=%g is at the end of the grid; a wider one may be better: --config.l2=...", l2)
    model = dataclasses.replace(model, weights=weights_CF, biases=biases_C)
    return model, {"l2": l2, "grid": grid}


def texts_of(examples: Examples) -> list[tuple[str, ...]]:
    """The text of each example as a tuple of one, or the two of a pair."""
    sides = [side for side in (examples.texts_a, examples.texts_b) if side is not None]
    return list(zip(*sides, strict=True))


def measure(model: Logistic, examples: Examples) -> tuple[np.ndarray, dict[str, float]]:
    """(index of the likeliest label of each example [N], {metric: value, "task_loss": nats})."""
    probabilities_NC = model.probabilities(texts_of(examples))
    predicted_N = probabilities_NC.argmax(1)
    right_N = probabilities_NC[np.arange(len(examples)), examples.labels]
    loss = -float(np.log(np.maximum(right_N, np.finfo(float).tiny)).mean())
    return predicted_N, score(examples.task.metrics, predicted_N, examples.labels) | {
        "task_loss": loss
    }


def _journal(workdir, model, examples: int, l2: float, metrics: dict, seconds: float) -> None:
    journal = Journal(workdir, 0, tensorboard=False)
    said = {"train/examples": examples, "train/features": len(model.names), "train/l2": l2}
    said |= {"perf/seconds": seconds} | {f"eval/{name}": value for name, value in metrics.items()}
    journal.write(1, said)
    journal.close()


def _say(
    task: Task,
    features: int,
    chosen: dict,
    metrics: dict[str, float],
    constant: dict[str, Baseline],
    heaviest: dict[str, list],
    seconds: float,
) -> None:
    """Say how the model did beside the baselines, and which features decide."""
    log.info("%s features, l2=%g, %.1f s", f"{features:,}", chosen["l2"], seconds)
    for label, found in heaviest.items():
        shown = ", ".join(f"{name} {weight:.2f}" for name, weight in found)
        log.info("heaviest of %r: %s", label, shown or "none above 0")
    for name, baseline in constant.items():
        shown = figures({metric: metrics[f"{name}/{metric}"] for metric in task.metrics})
        log.info("%s: %s; %s", name, shown, baseline)


def evaluate(workdir: Path) -> dict[str, float]:
    """Measure the model of a workdir on the labelled splits of its run; writes evaluation.json."""
    config, model = recipe.read(workdir), files.load(workdir)
    task = _task(config.data)
    splits = load_splits(task, config.data.dir or None, config.data.dev_fraction)
    results = {}
    for name, examples in splits.items():
        if name != "train" and examples.labels is not None:
            predicted_N, found = measure(model, examples)
            save_predictions(workdir, name, task, predicted_N)
            results |= {f"{name}/{metric}": value for metric, value in found.items()}
    write_text(workdir / "evaluation.json", json.dumps(results, indent=2) + "\n")
    return results
