"""Several labelled tasks of one run, as `data.tasks` names them.

It lists names of tasks, whose files are under data.dir, and NAME=FILE for files of one's own:
"rte,mrpc,topics=topics.jsonl". Columns, labels and kind of such a file are found. data.dev and
data.test name its other files in the same way, "topics=topics-dev.jsonl"; without a dev file, the
dev split is split off.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firth.data.tasks.load import get_task
from firth.data.tasks.split import load_splits
from firth.data.tasks.task import Examples, Task
from firth.errors import FirthError

KIND = "multitask"
MEAN = "mean"  # of the main metrics of all tasks; it chooses the best checkpoint
ALONE = ("task", "train", "text", "label", "kind", "choices")  # of a single task


@dataclass(frozen=True)
class Several(Task):
    """Several tasks as one, whose sets are called "dev_rte", "dev_matched_mnli", "test_rte".

    `metrics` begin with the mean of the tasks' main metrics; `tasks` are they, in the order in
    which the run names them.
    """

    tasks: tuple[Task, ...] = ()

    def of_set(self, name: str) -> Task:
        """The task of a set; KeyError for one that there is not."""
        return {set_name(split, t): t for t in self.tasks for split in (*t.files, "dev")}[name]


def set_name(split: str, task: Task) -> str:
    """What a split of a task is called in a run of several."""
    return f"{split}_{task.name}"


def find_tasks(data) -> Several:
    """The tasks that the data section names.

    Raises FirthError as `get_task` does, for fewer than two tasks, for a name that is no name or
    occurs twice, for questions with choices, for a task without a train split, for dev and test
    files of a task without a train file, and for fields of a single task beside `data.tasks`.
    """
    if given := [name for name in ALONE if data.get(name)]:
        raise FirthError(
            f"data.tasks={data.tasks!r} and data.{given[0]}={data[given[0]]!r}: a run has one task "
            "or several; of several, NAME=FILE is a file of one's own"
        )
    files = {split: _files(data, split) for split in ("dev", "test")}
    entries = [entry.strip().partition("=") for entry in data.tasks.split(",")]
    tasks = [
        _task(name, train, {split: own.get(name, "") for split, own in files.items()}, data)
        for name, _, train in entries
    ]
    names = [task.name for task in tasks]
    if len(tasks) < 2 or len(set(names)) < len(names):
        raise FirthError(f"data.tasks={data.tasks!r}: expected two tasks or more, each once")
    for split, own in files.items():
        if unknown := own.keys() - {name for name, _, train in entries if train}:
            raise FirthError(
                f"data.{split}={data[split]!r}: {min(unknown)!r} is none of the tasks with a file "
                f"of their own in data.tasks={data.tasks!r}"
            )
    metrics = dict.fromkeys([MEAN, *(metric for task in tasks for metric in task.metrics)])
    return Several("+".join(names), KIND, (), "", tuple(metrics), {}, tasks=tuple(tasks))


def _files(data, split: str) -> dict[str, str]:
    """{task: file} of data.dev or data.test."""
    pairs = [entry.strip().partition("=") for entry in (data.get(split) or "").split(",") if entry]
    if wrong := [entry for entry, _, file in pairs if not file]:
        raise FirthError(
            f"data.{split}={data[split]!r}: {wrong[0]!r} names no task; of several tasks expected "
            "NAME=FILE,..."
        )
    found = {name: file for name, _, file in pairs}
    if len(found) < len(pairs):
        raise FirthError(f"data.{split}={data[split]!r}: expected one file of a task")
    return found


def _task(name: str, train: str, others: dict[str, str], data) -> Task:
    """A task of the list; `train` and `others` are its own files, "" for none."""
    if not re.fullmatch(r"[A-Za-z]\w*", name):
        raise FirthError(
            f"data.tasks={data.tasks!r}: {name!r} is no name of a task; expected NAME,... or "
            "NAME=FILE,... of letters, digits and _"
        )
    options = dict(train=train, directory=data.dir or None, **others) if train else {}
    task = get_task(name, **options)
    if task.kind == "choice":
        raise FirthError(
            f"task {name!r} has questions with choices, which a run of several tasks cannot have; "
            f"train it alone: --config finetune.py:task={name}"
        )
    if "train" not in task.files:
        raise FirthError(f"task {name!r} has no train split to learn from")
    return task


def load_tasks(
    several: Several, directory: str | None, dev_fraction: float
) -> dict[str, dict[str, Examples]]:
    """{name of the task: {split: its examples}}; see `firth.data.tasks.split.load_splits`."""
    return {task.name: load_splits(task, directory, dev_fraction) for task in several.tasks}


def first_dev(task: Task) -> str:
    """The set of a task whose main metric counts in the mean."""
    return set_name((task.dev_splits or ("dev",))[0], task)


def mean_metric(several: Several, results: Mapping[str, float]) -> dict[str, float]:
    """{"dev/mean": the mean of the tasks' main metrics} of {"<set>/<metric>": value}."""
    values = [results[f"{first_dev(task)}/{task.main_metric}"] for task in several.tasks]
    return {f"dev/{MEAN}": sum(values) / len(values)}


def table(
    several: Several, measured: Mapping[str, float], constant: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Lines of aligned columns: the main metric of every labelled set, and the mean.

    `measured` has {"<set>/<metric>": value} of the best checkpoint, `constant` {set: {metric:
    value}} of a constant answer. What is not there is left out, or "-".
    """
    rows = [("set", "measure", "best checkpoint", "constant answer")]
    for name, baseline in constant.items():
        metric = several.of_set(name).main_metric
        values = (measured.get(f"{name}/{metric}"), baseline.get(metric))
        rows.append((name, metric, *("-" if v is None else f"{v:.4f}" for v in values)))
    if (mean := measured.get(f"dev/{MEAN}")) is not None:
        rows.append(("dev", MEAN, f"{mean:.4f}", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}".rstrip()
        for a, b, c, d in rows
    ]
