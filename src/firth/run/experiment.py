"""From a config to the parts of a run: tokenizer, model, objective, data.

Each part is built by name from a section of the config, so objective, body and view are independent
fields. Parts that do not fit together raise FirthError here, with the reason.
"""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from firth.data.corpus.store import Store, open_store
from firth.data.tasks.load import find_task
from firth.data.tasks.overview import Baseline, baselines, overview
from firth.data.tasks.split import load_splits
from firth.data.tasks.task import Task
from firth.data.views import create_view, view_config
from firth.data.views.base import Source
from firth.data.views.selection import split_documents
from firth.errors import FirthError
from firth.layers.class_softmax import divide
from firth.models.heads import classifies_pooled
from firth.models.model import Model, create, family, longest
from firth.models.recurrent.char_cnn_lstm import vocabulary
from firth.objectives.objective import Objective
from firth.run.answering.parts import Answering
from firth.run.building.objective import create_objective
from firth.run.labelled.heads import without_other_labels
from firth.run.labelled.parts import Parts, task_tokenizer
from firth.run.labelled.rows import read_rows
from firth.run.labelled.several import Multitask
from firth.run.tagging.parts import Tagged
from firth.tokenizers.base import Tokenizer
from firth.training import partition
from firth.training.unfreezing.gradual import stage_begins
from firth.weights.read import Saved, read_model
from firth.weights.transfer.vocabulary import transfer_vocabulary

# Objectives of tasks whose examples are no texts with a label each: what reads them.
PARTS: dict[str, type[Parts]] = {"tag": Tagged, "answer": Answering}

log = logging.getLogger("firth")

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The parts of a run that `train` and `evaluate` use.

    `batch(step)` gives this process's rows of a training batch; `heldout[name]()` iterates once
    over this process's share of an evaluation set. `task` is None in pretraining. `spec` is the
    config's model section with all fields filled in. `initial` holds the loaded parameters to start
    from (nested, layers unrolled); it may be empty or partial. `overview` holds lines on a task's
    examples, to be read before training; `baselines` a constant prediction on each labelled set;
    `scorers` what measures each set of a task in `PARTS`; `groups` the part of each example of a
    set that is also measured alone. `passes` are the batches of a pass over each set of a task.
    """

    model: Model
    spec: dict
    objective: Objective
    tokenizer: Tokenizer
    steps: int  # in the whole schedule
    batch: Callable[[int], Batch]
    heldout: dict[str, Callable[[], Iterator[Batch]]]
    evaluate_every: int
    best: str  # the metric that chooses the best checkpoint, "" for none
    task: Task | None = None
    initial: dict = dataclasses.field(default_factory=dict)
    stores: tuple[Store, ...] = ()  # sources of the batches
    fresh: tuple[str, ...] = ()  # expressions for parameters of the body that the weights lack
    stages: tuple[int, ...] = ()  # the first steps of those of gradual unfreezing
    overview: tuple[str, ...] = ()
    baselines: dict[str, Baseline] = dataclasses.field(default_factory=dict)
    scorers: dict[str, Callable] = dataclasses.field(default_factory=dict)
    groups: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    passes: dict[str, int] = dataclasses.field(default_factory=dict)
    summary: Callable[[dict], dict] = lambda results: {}

    @property
    def generator(self) -> dict | None:
        """{"model": spec, "tied": ...} of a generator trained beside the model, or None."""
        parts = self.objective.parts(self.spec)
        if not parts.get("generator"):
            return None
        return {"model": parts["generator"], "tied": parts["tied"]}


def build(config, mesh, cache: Path | None = None) -> Experiment:
    """Build the parts of a run; the mesh of devices decides which rows this process reads.

    `cache` is a file in which views may store the sizes of epochs. Raises FirthError for a config
    whose parts do not exist or do not fit together.
    """
    initial = read_model(config.init_from) if config.init_from else None
    index, count = partition.own_slice(mesh)
    own = dict(index=index, count=count)
    kind = Multitask if config.data.get("tasks") else PARTS.get(config.objective.name)
    if kind and "task" in config.data:
        return _labelled(kind, config, initial, own, cache)
    if "task" in config.data:
        multiple = mesh.shape["data"] * mesh.shape["fsdp"] * config.accumulate
        return _finetuning(config, initial, own, multiple)
    return _pretraining(config, initial, own, cache)


def _pretraining(config, initial, own, cache) -> Experiment:
    data = config.data
    if not data.store:
        raise FirthError(
            "data.store is not set; prepare a corpus with `firth prepare` and give "
            "--config.data.store=DIR"
        )
    store = open_store(data.store)
    tokenizer = store.tokenizer()
    if initial and config.get("transfer_vocabulary"):
        initial = transfer_vocabulary(initial, tokenizer)
    elif config.model.get("from_init"):
        _check_tokenizer(data.store, tokenizer, initial)
    spec = model_spec(config, initial, tokenizer, store.token_counts)
    objective = create_objective(config.objective, tokenizer, body=spec, counts=store.token_counts)
    measured = _measured(config, spec)
    for section in (data, measured):
        objective.check(section)
    stores, train_documents, heldout = [store], None, {}
    if path := data.get("heldout_store"):
        held_store = open_store(path)
        if held_store.tokenizer().digest != tokenizer.digest:
            raise FirthError(
                f"data.heldout_store={path} was made with another tokenizer than data.store="
                f"{data.store}; prepare both with the same one"
            )
        stores.append(held_store)
        held = create_view(measured, Source(held_store, tokenizer, config.seed))
    elif data.heldout:
        train_documents, heldout_documents = split_documents(
            store, data.heldout, minimum=view_config(data).min_documents
        )
        held = create_view(measured, Source(store, tokenizer, config.seed, heldout_documents))
    if path or data.heldout:
        heldout["heldout"] = lambda: held.sequential(
            config.eval.batch_size, limit=config.eval.batches, **own
        )
    train = create_view(data, Source(store, tokenizer, config.seed, train_documents, cache))
    return Experiment(
        model=create_model(spec, objective),
        spec=spec,
        objective=objective,
        tokenizer=tokenizer,
        steps=_steps(config, train),
        batch=lambda step: train.batch(step, config.batch_size, **own),
        heldout=heldout,
        evaluate_every=config.eval.every,
        best=config.checkpoint.best,
        initial=_initial(initial, objective, spec),
        stores=tuple(stores),
    )


def _steps(config, train) -> int:
    """The length of a run: its own, or that of its epochs of `train`."""
    if config.steps:
        return config.steps
    return max(round(config.epochs * train.steps_per_epoch(config.batch_size)), 1)


def _check_tokenizer(store: str, tokenizer: Tokenizer, initial: Saved | None) -> None:
    """Raise FirthError if a store's ids are not those that the weights were trained with."""
    own = initial and initial.tokenizer()
    if own and own.digest != tokenizer.digest:
        raise FirthError(
            f"data.store={store} was made with another tokenizer than that of the weights in "
            f"{initial.source}; prepare it again with --tokenizer={initial.source}, or "
            "move the weights to its words: --config.transfer_vocabulary=True"
        )


def _measured(config, spec):
    """The data section for evaluation, with `eval.length` as its length if that is set."""
    length = config.eval.get("length", 0)
    if length > longest(spec):
        raise FirthError(
            f"eval.length={length} is beyond the position table (model.max_length={longest(spec)})"
        )
    data = config.data.copy_and_resolve_references()
    data.length = length or data.length
    return data


def _finetuning(config, initial, own, multiple: int) -> Experiment:
    data = config.data
    task = find_task(data)
    tokenizer = task_tokenizer(data, initial)
    spec = model_spec(config, initial, tokenizer)
    if config.get("settings", spec["family"]) != spec["family"]:
        log.info(
            "the weights are of family %s, but the settings come from %s's paper: see the argument "
            "`family` of finetune.py",
            spec["family"],
            config.settings,
        )
    module = family(spec["family"])
    fresh = ()
    if classifies_pooled(module.Config):
        spec["pooler"] = True  # the input of the classifier
        if initial is None or "pooler" not in initial.params.get("encoder", {}):
            fresh = ("^encoder/pooler/",)  # untrained, so `freeze` does not apply to it

    splits = load_splits(task, data.dir or None, data.get("dev_fraction", 0.0))
    rows, truncated, packed = read_rows(splits, tokenizer, spec, config, multiple)
    first_dev = next(split for split in splits if split.startswith("dev"))
    gold = splits["train"].labels
    objective = create_objective(config.objective, tokenizer, task, body=spec, labels=gold)
    model = create_model(spec, objective, num_labels=max(len(task.labels), 1))
    measured, per_epoch = _of_rows(config, task, rows, first_dev, own)
    depth = model.encoder.config.num_layers
    start, said = without_other_labels(initial, task)
    return Experiment(
        model=model,
        spec=spec,
        objective=objective,
        tokenizer=tokenizer,
        **measured,
        initial=_initial(start, objective, spec),
        fresh=fresh,
        stages=stage_begins(
            config.get("unfreeze_epochs", 0.0), per_epoch, depth, measured["steps"]
        ),
        overview=(
            *said,
            *overview(task, splits, truncated, data.length, bool(task.dev_splits)),
            *packed,
        ),
        baselines=baselines(task, splits),
        groups={name: x.groups for name, x in splits.items() if x.groups is not None},
    )


def _of_rows(config, task: Task, rows: dict, first_dev: str, own: dict) -> tuple[dict, int]:
    """(the parts of an experiment that the rows of each split decide, steps of an epoch)."""
    train, best, size = rows["train"], config.checkpoint.best, config.eval.batch_size
    heldout = {split: view for split, view in rows.items() if split != "train"}
    per_epoch = train.steps_per_epoch(config.batch_size)
    return dict(
        task=task,
        steps=_steps(config, train),
        batch=lambda step: train.batch(step, config.batch_size, **own),
        heldout={
            split: functools.partial(view.sequential, size, **own)
            for split, view in heldout.items()
        },
        passes={split: view.steps_per_epoch(size) for split, view in heldout.items()},
        evaluate_every=config.eval.every or max(round(config.eval.epochs * per_epoch), 1),
        best=f"{first_dev}/{task.main_metric}" if best == "task" else best,
    ), per_epoch


def _labelled(kind: type[Parts], config, initial, own, cache) -> Experiment:
    parts = kind.read(config, initial)
    spec = model_spec(config, initial, parts.tokenizer)
    parts.complete(spec, cache)
    rows = parts.rows(spec, config.data, config.seed)
    section = dict(config.objective) | parts.section
    objective = create_objective(section, parts.tokenizer, parts.task, body=spec)
    model = create_model(spec, objective, max(len(parts.task.labels), 1))
    measured, _ = _of_rows(config, parts.task, rows, "dev", own)
    return Experiment(
        model=model,
        spec=spec,
        objective=objective,
        tokenizer=parts.tokenizer,
        **measured,
        initial=_initial(initial, objective, spec) or parts.initial(model, config.seed),
        fresh=parts.fresh,
        summary=parts.summary,
        overview=tuple(parts.overview()),
        baselines=parts.baselines(),
        scorers={name: functools.partial(parts.score, name) for name in measured["heldout"]},
    )


def create_model(spec: dict, objective, num_labels: int = 2) -> Model:
    """The body of `spec` with the heads of the objective, and its second model if it has one."""
    return create(spec, objective.heads, num_labels, **objective.parts(spec))


def _initial(saved: Saved | None, objective, spec: dict) -> dict:
    """Parameters to start from: the weights of `init_from` over those of the objective."""
    return objective.initial(spec) | (saved.params if saved else {})


def model_spec(config, initial, tokenizer: Tokenizer, counts=None) -> dict:
    """The model section with the vocabulary filled in: its size, its words, their classes' sizes.

    Those are the initial weights', or by `counts()`, int [V] of the training text. Raises
    FirthError if the vocabulary is larger than the model's table, or a row is longer than its
    positions.
    """
    spec = dict(config.model)
    if spec.pop("from_init", False):
        if initial is None:
            raise FirthError("init_from is not set; give the weights to start from, as in init=DIR")
        if "attention_dropout" not in initial.spec:  # a recurrent body's: it has no attention
            spec.pop("attention_dropout", None)
        spec = dict(initial.spec) | spec
    spec["vocab_size"] = spec.get("vocab_size") or tokenizer.vocab_size
    if spec.get("classes"):
        own = initial and initial.spec.get("class_sizes")
        spec["class_sizes"] = own or divide(counts(), spec["classes"])
    if "words" in {field.name for field in dataclasses.fields(family(spec["family"]).Config)}:
        spec["words"] = spec.get("words") or vocabulary(tokenizer)
    if spec.get("pad_id", 0) < 0:
        spec["pad_id"] = tokenizer.pad_id
    if tokenizer.vocab_size > spec["vocab_size"]:
        raise FirthError(
            f"the tokenizer has {tokenizer.vocab_size} tokens but model.vocab_size is "
            f"{spec['vocab_size']}; use the model's own tokenizer, or a larger table"
        )
    if config.data.length > longest(spec):
        raise FirthError(
            f"data.length={config.data.length} is beyond the position table "
            f"(model.max_length={longest(spec)})"
        )
    return spec
