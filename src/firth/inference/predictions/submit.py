"""From finished runs to the archive that GLUE's server takes. N examples, C labels."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from firth import recipe
from firth.data.submissions.glue import FILES, MODELS, Counted, constant, write_archive
from firth.data.submissions.predictions import answers, as_text
from firth.data.tasks.load import load_split
from firth.data.tasks.rows import Row
from firth.data.tasks.task import GLUE, Examples, Task
from firth.display.runs import read_run
from firth.errors import FirthError
from firth.inference.predictions.classifier import TextClassifier, predict_rows, warn_of_cut
from firth.inference.predictions.load import load_classifier, names_of
from firth.inference.predictions.reading import Reading
from firth.progress import Progress
from firth.storage.local import read_json

log = logging.getLogger("firth")

CONSTANT = "a constant"  # in place of a model


class Source(NamedTuple):
    """A model of a task, and the folder of GLUE's files, "" where none is known.

    head: of a model of several tasks, the one whose head answers.
    """

    model: str
    data: str
    head: str | None = None


def find_sources(names: Sequence[str], data: str = "") -> dict[str, Source]:
    """{task: its model} of arguments like `runs/rte` and `TASK=MODEL`.

    A workdir says its task, or its several tasks, of which those of GLUE are taken; of a folder of
    seeds the one best on dev is taken. `data` is the folder of GLUE's files, by default that of
    each run. Raises FirthError for what is no run of a task of GLUE, and for two models of a task.
    """
    found = {}
    for name in names:
        task, _, model = name.partition("=") if "=" in name else ("", "", name)
        known = task in MODELS
        if not known and Path(name).is_dir():  # a folder may be named after a setting, "lr=1e-5"
            task, model = "", name
        if task and not known:
            raise FirthError(f"{name}: {task!r} is no task of GLUE; there are {', '.join(MODELS)}")
        models = names_of(model)
        if not known and len(models) > 1:
            raise FirthError(f"{name}: for the mean of several models write TASK={name}")
        parts = [_run(part, known) for part in models]
        first, model = parts[0], ",".join(part.model for part in parts)
        own = [task] if task else [each for each in first.tasks if each in MODELS]
        if not own:
            said = ", ".join(map(repr, first.tasks)) or "files of its own"
            raise FirthError(
                f"{model} was trained on {said}, not on a task of GLUE ({', '.join(MODELS)}); "
                "TASK=MODEL says what it is for"
            )
        for each in own:
            if each in found:
                raise FirthError(
                    f"{found[each].model} and {model} are both of task {each!r}; give one"
                )
            found[each] = Source(model, data or first.data, each if first.several else None)
    return found


class _Run(NamedTuple):
    model: str
    tasks: tuple[str, ...] = ()  # "rte", or "rte=rte.csv" with a file of its own
    data: str = ""
    several: bool = False


def _run(name: str, known: bool) -> _Run:
    """A model with what its workdir says; `known` says that it may be no workdir."""
    folder = Path(name)
    if (folder / "summary.json").is_file() and list(folder.glob("seed-*")):
        folder = _best_seed(folder)
    try:
        config = recipe.read(folder)
    except FirthError:
        if known:
            return _Run(name)
        raise
    if (run := read_run(folder)).state != "finished":
        log.warning("%s is %s: its best checkpoint so far is taken", folder, run.state)
    data = config.get("data", {})
    task, several = data.get("task", "").rpartition("/")[2], data.get("tasks") or ""
    names = map(str.strip, several.split(",")) if several else filter(None, [task])
    return _Run(str(folder), tuple(names), data.get("dir") or "", several=bool(several))


def _best_seed(folder: Path) -> Path:
    """The workdir of the seed that is best on dev."""
    measured = read_json(folder / "summary.json")
    first = sorted(folder.glob("seed-*"))[0]
    best = read_json(first / "model.json").get("best", "")
    values = measured.get(best, {}).get("values", {})
    if not values:
        raise FirthError(f"{folder / 'summary.json'} has no {best!r} of each seed; give one seed")
    seed = max(values, key=values.get)
    log.info("%s: seed %s, the best on dev (%s %.4f)", folder, seed, best, values[seed])
    return folder / f"seed-{seed}"


def submit(
    sources: dict[str, Source],
    output: Path,
    *,
    fill: bool = False,
    reading: Reading | None = None,
    dtype: str | None = None,
) -> list[tuple[Counted, str]]:
    """Label the test sets of GLUE and write the archive: [(what a file holds, its model)].

    MNLI's model also labels the diagnostic set, AX.

    Args:
      sources: from `find_sources`.
      output: the zip to write; the write is atomic.
      fill: whether tasks without a model get a constant answer.
      reading: how texts become rows (None: `Reading`'s defaults). dtype: of the computation.

    Raises:
      FirthError: tasks without a model (all are named), a model with other labels than its task, a
        test file that is missing or not whole.
    """
    missing = [name for name, entry in FILES.items() if entry.model not in sources]
    if missing and not fill:
        models = dict.fromkeys(FILES[name].model for name in missing)
        raise FirthError(
            f"the server wants all {len(FILES)} files, and these have no model: "
            f"{', '.join(missing)}; give runs of {', '.join(models)}, or --fill to write a "
            "constant answer for each"
        )
    tests = {
        name: _test_set(name, sources[FILES[name].model]) for name in FILES if name not in missing
    }
    texts = {name: constant(name) for name in missing}
    for task, source in sources.items():
        classifier = load_classifier(source.model, dtype, task=source.head)
        for name in [name for name, entry in FILES.items() if entry.model == task]:
            texts[name] = _label(name, classifier, tests[name], reading or Reading())
    models = {name: source.model for name in tests for source in [sources[FILES[name].model]]}
    counted = write_archive(output, texts)
    return [(one, models.get(one.name, CONSTANT)) for one in counted]


def _test_set(name: str, source: Source) -> Examples:
    """The examples of a file; FirthError if they are not all that the server knows."""
    entry = FILES[name]
    if not source.data:
        raise FirthError(f"{source.model} does not say where GLUE's files are; give --data DIR")
    examples = load_split(GLUE[entry.task], entry.split, source.data)
    if len(examples) != entry.rows:
        raise FirthError(
            f"{examples.source} has {len(examples):,} examples, but GLUE's test set has "
            f"{entry.rows:,}; give it whole"
        )
    return examples


def _label(name: str, classifier: TextClassifier, examples: Examples, reading: Reading) -> str:
    """The text of a file: the answers of a classifier, in the order of the test set."""
    task = FILES[name].answers
    order = _order(classifier, task)
    pairs = examples.texts_b is not None
    texts = zip(examples.texts_a, examples.texts_b, strict=True) if pairs else examples.texts_a
    rows = (
        Row(f"{examples.source}:{n}", {}, text)
        for n, text in zip(examples.rows, texts, strict=True)
    )
    bar, outputs, cut = Progress(len(examples), 0, name), [], 0
    try:
        for _, outputs_NC, lost in predict_rows(classifier, rows, reading):
            outputs.append(outputs_NC)
            cut += lost
            bar.done(sum(map(len, outputs)), "texts")
    finally:
        bar.close()
    warn_of_cut(cut, len(examples), classifier, reading, ("--max-length", "--long"))
    outputs_NC = np.concatenate(outputs)
    return as_text(answers(task, order[outputs_NC.argmax(1)] if task.labels else outputs_NC[:, 0]))


def _order(classifier: TextClassifier, task: Task) -> np.ndarray:
    """int [C]: the index in the task of each label of the model, by its name."""
    spelled = {}
    for names in (task.names, task.labels):
        spelled |= {name.casefold(): index for index, name in enumerate(names)}
    found = [spelled.get(label.casefold(), -1) for label in classifier.labels]
    if sorted(found) != list(range(len(task.labels))):
        none = "none (scores)"
        raise FirthError(
            f"{classifier.source} has the labels {', '.join(classifier.labels) or none}, but task "
            f"{task.name!r} has {', '.join(task.labels) or none}; train it on this task"
        )
    return np.array(found, np.int64)
