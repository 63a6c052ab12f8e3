"""The interface of a kind of labelled task to a run; see `firth.run.experiment.PARTS`."""

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from firth.data.tasks.buckets import Buckets
from firth.data.tasks.overview import Baseline
from firth.data.tasks.task import Task
from firth.errors import FirthError
from firth.tokenizers.base import Tokenizer
from firth.tokenizers.load import load_tokenizer
from firth.weights.read import Saved


class Parts(abc.ABC):
    """What a run has of its files: the task, the rows of each split, and what measures them.

    Attributes: task; splits, {split: its examples}; tokenizer; fresh, expressions for parameters of
    the body that the weights lack; section, what the parts decide of the objective's section.
    """

    section: ClassVar[dict] = {}
    fresh: tuple[str, ...] = ()

    task: Task
    splits: Mapping
    tokenizer: Tokenizer

    @classmethod
    @abc.abstractmethod
    def read(cls, config, initial: Saved | None) -> "Parts":
        """Read the files of a config's data section; `initial` are weights to start from."""

    def complete(self, spec: dict, cache: Path | None) -> None:
        """Set what the files decide of the model section; `cache` is the workdir's file of epochs.

        By default nothing.
        """
        del spec, cache

    @abc.abstractmethod
    def rows(self, spec: dict, data, seed: int) -> dict[str, Buckets]:
        """The view of each split, by the data section."""

    def initial(self, model, seed: int) -> dict:
        """Parameters to start from without weights; {} for random ones, the default."""
        del model, seed
        return {}

    @abc.abstractmethod
    def overview(self) -> list[str]:
        """Lines to read before the run, once there are rows."""

    @abc.abstractmethod
    def baselines(self) -> dict[str, Baseline]:
        """The baseline of each split with labels, but train."""

    def summary(self, results: Mapping[str, float]) -> dict[str, float]:
        """Measures of all sets together, of {"<set>/<metric>": value}; by default none."""
        del results
        return {}

    @abc.abstractmethod
    def score(self, split: str, columns: list[dict]) -> tuple[dict[str, float], object]:
        """(metrics, predictions) from the outputs of the batches of a split.

        Without labels there are no metrics. `data.submissions.predictions` writes the predictions.
        """


def task_tokenizer(data, initial: Saved | None) -> Tokenizer:
    """The tokenizer that the config names, else that of the weights; FirthError without any."""
    path = data.tokenizer or (initial and initial.tokenizer_path)
    if not path:
        raise FirthError("set data.tokenizer, or init_from to weights that come with a tokenizer")
    return load_tokenizer(path)
