"""What `firth evaluate` measures, against transformers on one text at a time."""

import csv
import json
import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.marked_store import make_marked_store
from helpers.published.bert import WORDS, add_tokenizer, make_bert
from helpers.quick import jit
from scipy import stats

from firth import recipe
from firth.cli import main
from firth.errors import FirthError
from firth.progress import Progress
from firth.run import evaluator, recorded
from firth.run.evaluator import Evaluators, Heldout
from firth.run.experiment import build
from firth.run.workdir import describe_run
from firth.training import partition
from firth.training.checkpoint import Checkpoints
from firth.training.state import TrainState

LENGTH = 32
SIZES = {  # texts by their number of words, in an order that no bucket has
    "train": [3, 9, 4],
    "dev": [5, 29, 1, 18, 40, 2, 13, 30, 7, 14, 22, 3, 16],
    "test": [20, 4, 31, 15, 1, 26, 8, 14, 3, 45, 10],
}
LABELS = ("yes", "no", "perhaps")  # not in alphabetical order in the files
MESHES = {
    "one device": (1, {}),
    "rows over 8": (8, {"mesh.data": 8}),
    "everything cut": (8, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}),
}


def made_task(folder, kind):
    """{split: texts}, labels of dev, the torch model, its tokenizer, changes to the recipe."""
    rng = np.random.default_rng(3)
    ordinary = WORDS[5:16]
    texts = {s: [" ".join(rng.choice(ordinary, n)) for n in sizes] for s, sizes in SIZES.items()}
    classes = dict(num_labels=1, problem_type="regression")
    if kind == "classification":  # files name the labels, and Firth sorts their names
        names = dict(enumerate(sorted(LABELS)))
        classes = dict(id2label=names, label2id={name: i for i, name in names.items()})
    model = make_bert(
        folder / "m", "BertForSequenceClassification", vocab_size=len(WORDS), **classes
    )
    tokenizer = add_tokenizer(folder / "m")
    labels = {}
    for split, some in texts.items():
        values = rng.choice(LABELS, len(some)).tolist()
        if kind == "regression":
            values = [f"{value:.3f}" for value in rng.uniform(-1, 5, len(some))]
        elif split == "train":
            values = list(LABELS)  # which is where the labels are taken from
        labels[split] = values
        columns = zip(some, values, strict=True)
        rows = some if split == "test" else [f"{text},{value}" for text, value in columns]
        head = "sentence" if split == "test" else "sentence,label"
        (folder / f"{split}.csv").write_text("\n".join([head, *rows]) + "\n")
    changes = {f"data.{split}": str(folder / f"{split}.csv") for split in texts}
    changes |= {"data.kind": kind, "eval.batch_size": 8, "progress": False}
    return texts, labels["dev"], model, tokenizer, changes


def config_of(folder, changes):
    config = recipe.read_recipe(f"finetune.py:task=custom,init={folder}/m,length={LENGTH}")
    return recipe.with_fields(config, changes)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Compile without optimising."""
    monkeypatch.setattr(jax, "jit", jit)


@pytest.fixture(scope="module", params=["classification", "regression"])
def task(request, tmp_path_factory):
    """(kind, folder, changes, logits of dev and test [n, C] by transformers, labels of dev)."""
    import torch

    folder = tmp_path_factory.mktemp(request.param)
    texts, labels, model, tokenizer, changes = made_task(folder, request.param)

    def logits_of(text):
        row = tokenizer(text, truncation=True, max_length=LENGTH, return_tensors="pt")
        with torch.no_grad():
            return model(**row).logits[0].double().numpy()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # such small products are slower on many
    # Centred, so that no class or sign is that of all texts.
    with torch.no_grad():
        mean = np.mean([logits_of(text) for text in texts["dev"]], 0)
        model.classifier.bias -= torch.tensor(mean, dtype=torch.float32)
    model.save_pretrained(folder / "m")
    logits = {split: np.array([logits_of(t) for t in texts[split]]) for split in ("dev", "test")}
    torch.set_num_threads(threads)
    if request.param == "regression":
        labels = np.array(labels, np.float64)
    else:
        labels = np.array([sorted(LABELS).index(label) for label in labels])
    return request.param, folder, changes, logits, labels


@pytest.mark.parametrize("mesh", MESHES)
def test_a_task_is_measured_on_its_real_rows_in_file_order(task, mesh):
    """13 examples in batches of 8: the rows that fill up the last one count for nothing."""
    kind, folder, changes, logits, labels = task
    devices, axes = MESHES[mesh]
    config = config_of(folder, changes | axes)
    over = partition.create_mesh(config.mesh, jax.devices()[:devices])
    run = build(config, over)
    assert run.task.labels == (tuple(sorted(LABELS)) if kind == "classification" else ())
    params = jax.device_put(run.initial, partition.shardings_of(run.initial, over))
    shown = []
    evaluator = Evaluators(run, config, over, shown.append).heldout
    means, predictions = evaluator.measure(params, "dev")
    assert shown == ["dev: batch 1 of 2", "dev: batch 2 of 2"]
    expected = logits["dev"]
    if kind == "regression":
        np.testing.assert_allclose(predictions, expected[:, 0], atol=1e-4)
        wanted = {
            "task_loss": np.mean((expected[:, 0] - labels) ** 2),
            "pearson": stats.pearsonr(expected[:, 0], labels).statistic,
            "spearman": stats.spearmanr(expected[:, 0], labels).statistic,
        }
    else:
        assert predictions.tolist() == expected.argmax(1).tolist()
        assert len(set(predictions.tolist())) > 1
        log_p = expected - np.log(np.exp(expected).sum(1, keepdims=True))
        accuracy = np.mean(expected.argmax(1) == labels)
        wanted = dict(task_accuracy=accuracy, accuracy=accuracy)
        wanted["task_loss"] = -log_p[np.arange(len(labels)), labels].mean()
    assert means == pytest.approx(wanted, rel=1e-4)
    assert evaluator.run(SimpleNamespace(params=params)) == {
        f"dev/{k}": v for k, v in means.items()
    }
    means, predictions = evaluator.measure(params, "test")  # which has no labels
    assert means == {}
    found = logits["test"][:, 0] if kind == "regression" else logits["test"].argmax(1)
    np.testing.assert_allclose(predictions, found, atol=1e-4)


def test_the_command_writes_predictions_in_file_order(task, tmp_path, capsys, monkeypatch):
    kind, folder, changes, logits, labels = task
    config = config_of(folder, changes)
    run = build(config, partition.create_mesh(config.mesh))
    recorded.record(config, tmp_path)
    describe_run(run, tmp_path)
    worse = jax.tree.map(lambda x: -x, run.initial)
    saves = Checkpoints(tmp_path, keep=3, best=run.best)
    for step, params, value in ((1, worse, 0.1), (2, run.initial, 0.9), (3, worse, 0.5)):
        state = TrainState.create(jax.device_put(params), optax.adam(1e-3))
        saves.save(step, state.replace(step=jnp.int32(step)), {}, {run.best: value})
    saves.close()
    shown = []

    def update(bar, step, text=""):
        bar.step = step
        shown.append((step, text))

    monkeypatch.setattr(Progress, "update", update)
    assert main(["evaluate", "--workdir", str(tmp_path)]) == 0
    texts = [
        f"{split}: batch {n} of 2" if n else "" for split in ("dev", "test") for n in (1, 2, 0)
    ]
    assert shown == list(zip((0, 0, 1, 1, 1, 2), texts, strict=True))
    assert f"dev/{'pearson' if kind == 'regression' else 'accuracy'}" in capsys.readouterr().out
    for split, found in logits.items():
        head, *rows = (tmp_path / "predictions" / f"{split}.tsv").read_text().splitlines()
        rows = [row.split("\t") for row in rows]
        assert head == "index\tprediction"
        assert [int(index) for index, _ in rows] == list(range(len(SIZES[split])))
        if kind == "regression":
            np.testing.assert_allclose([float(v) for _, v in rows], found[:, 0], atol=2e-4)
        else:
            assert [v for _, v in rows] == [sorted(LABELS)[n] for n in found.argmax(1)]
    assert sorted(os.listdir(tmp_path / "predictions")) == ["dev.tsv", "test.tsv"]
    # `firth predict` reads the same checkpoint, as many tokens of a text, and says the same.
    files = ["--input", str(folder / "test.csv"), "--output", str(tmp_path / "said.csv")]
    assert main(["predict", "--model", str(tmp_path), *files]) == 0
    with (tmp_path / "said.csv").open() as file:
        said = [row.get("label") or float(row["score"]) for row in csv.DictReader(file)]
    _, *rows = (tmp_path / "predictions" / "test.tsv").read_text().splitlines()
    expected = [row.split("\t")[1] for row in rows]
    if kind == "regression":
        np.testing.assert_allclose(said, [float(value) for value in expected], atol=2e-4)
    else:
        assert said == expected
    measured = json.loads((tmp_path / "evaluation.json").read_text())
    assert measured["step"] == 2  # the best, not the newest
    if kind == "classification":
        accuracy = np.mean(logits["dev"].argmax(1) == labels)
        assert measured["dev/accuracy"] == pytest.approx(accuracy)


# ------------------------------------------------------------------------------- pretraining


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_marked_store(tmp_path_factory.mktemp("documents"), 8)[0]


def measured(store, path, params=None, **changes):
    """(metrics of the held-out set, parameters) of a recipe's tiny body with random values."""
    fields = {"data.heldout_store": str(store), "data.store": str(store), "eval.batches": 10_000}
    fields |= {"model.num_layers": 1, "model.hidden_size": 16, "model.num_heads": 2}
    fields |= {"model.intermediate_size": 24, "mesh.data": 1} | changes
    config = recipe.with_fields(recipe.read_recipe(path), fields)
    mesh = partition.create_mesh(config.mesh, jax.devices()[:1])
    run = build(config, mesh)
    if params is None:
        rng, tokens = np.random.default_rng(0), np.zeros((1, 8), np.int32)
        shapes = jax.eval_shape(run.model.init, jax.random.key(0), tokens)["params"]
        params = jax.tree.map(
            lambda leaf: rng.normal(scale=0.2, size=leaf.shape).astype(np.float32), shapes
        )
    return Heldout(run, config, mesh).measure(params, "heldout")[0], params


def test_batches_of_another_size_measure_the_same(store):
    """Masks hang on the example, and rows of padding weigh nothing, so that sums are the same."""
    path, fields = "bert.py:tiny,length=32", {"model.max_length": 32}
    whole, params = measured(store, path, **fields, **{"eval.batch_size": 64})
    parted, _ = measured(store, path, params, **fields, **{"eval.batch_size": 5})
    assert whole.keys() == parted.keys() and whole["mlm_loss"] > 0
    assert parted == pytest.approx(whole, rel=1e-5)
    assert whole["mlm_perplexity"] == pytest.approx(np.exp(whole["mlm_loss"]))


def test_products_are_those_of_the_training(store):
    wide, params = measured(store, "bert.py:tiny,length=32")
    narrow, _ = measured(store, "bert.py:tiny,length=32", params, product_dtype="bfloat16")
    assert 1e-6 < abs(narrow["mlm_loss"] / wide["mlm_loss"] - 1) < 0.02


def test_what_is_remembered_goes_on_from_batch_to_batch(store):
    """With room for all the text, reading it in rows of 16 is reading it at once."""
    path, one = "transformer_xl.py:tiny,length=16", {"eval.batch_size": 1}
    one |= {"data.ends": "sentence", "data.shuffle": False}
    cut, params = measured(store, path, **one, **{"eval.memory": 600})
    whole, _ = measured(store, path, params, **one, **{"data.length": 600, "eval.memory": 1})
    short, _ = measured(store, path, params, **one, **{"eval.memory": 4})
    assert cut == pytest.approx(whole, rel=1e-4)
    assert abs(short["lm_loss"] - whole["lm_loss"]) > 1e-3


@pytest.mark.parametrize(
    ("rows", "fields", "devices"),
    [(1, {}, 1), (12, {}, 4), (64, {}, 8), (6, {"fsdp": 2}, 2), (8, {"tensor": 2}, 8)],
)
def test_as_many_devices_measure_as_divide_the_rows(rows, fields, devices):
    changes = {"eval.batch_size": rows} | {f"mesh.{name}": size for name, size in fields.items()}
    config = recipe.with_fields(recipe.read_recipe("bert.py:tiny"), changes)
    mesh = evaluator.mesh_for(config)
    assert mesh.size == devices
    evaluator.check_rows(config, mesh)


def test_devices_that_do_not_divide_the_rows_are_refused():
    fields = {"eval.batch_size": 12, "mesh.data": 8}
    config = recipe.with_fields(recipe.read_recipe("bert.py:tiny"), fields)
    message = r"eval.batch_size=12 is not a multiple of data x fsdp = 8"
    with pytest.raises(FirthError, match=message):
        evaluator.check_rows(config, evaluator.mesh_for(config))


def test_all_evaluators_run_after_the_last_step():
    evaluators = object.__new__(Evaluators)
    evaluators.every = {"": 4, "pairs": 6, "end": 0}
    due = [evaluators.due(step, last=False) for step in (3, 4, 6, 12)]
    assert due == [[], [""], ["pairs"], ["", "pairs"]]
    assert evaluators.due(13, last=True) == ["", "pairs", "end"]
