"""The head and the loss of choices against transformers, in every family that publishes them."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.published.bert import make_bert
from helpers.published.families import SHAPES, make_model
from helpers.published.xlnet import make_xlnet
from helpers.quick import jit

from firth.data.tasks.task import Task
from firth.errors import FirthError
from firth.models.model import bound
from firth.objectives.finetune import Finetune
from firth.objectives.objective import Sources
from firth.weights.read import read_model
from firth.weights.write import write_firth, write_published

CLASSES = {
    "bert": "BertForMultipleChoice",
    "roberta": "RobertaForMultipleChoice",
    "albert": "AlbertForMultipleChoice",
    "electra": "ElectraForMultipleChoice",
    "distilbert": "DistilBertForMultipleChoice",
    "xlnet": "XLNetForMultipleChoice",
}
# A family's published parameters of the head, by their paths.
NAMES = {
    "bert": {"dense": "classifier"},
    "roberta": {"hidden": "roberta.pooler.dense", "dense": "classifier"},
    "electra": {"hidden": "sequence_summary.summary", "dense": "classifier"},
    "xlnet": {"hidden": "sequence_summary.summary", "dense": "logits_proj"},
}
SIZES = np.array([[11, 7, 9], [5, 10, 6]])  # tokens of each choice of two questions


def published(folder, family):
    """A published model with random weights; the torch model."""
    if family == "bert":
        return make_bert(folder, CLASSES[family])
    if family == "xlnet":
        return make_xlnet(folder, name=CLASSES[family])
    return make_model(folder, family, next(iter(SHAPES[family])), CLASSES[family])


def questions(spec, seed=0):
    """A batch of two questions with three choices, padded at the end."""
    rng = np.random.default_rng(seed)
    pad = spec.get("pad_id", 0)
    shape = (*SIZES.shape, SIZES.max())
    mask = np.arange(shape[-1]) < SIZES[..., None]
    tokens = np.where(mask, rng.integers(pad + 3, spec["vocab_size"], shape), pad)
    types = max(spec.get("type_vocab_size", 1), 1)
    return {
        "tokens": tokens.astype(np.int32),
        "segments": np.where(mask, rng.integers(0, min(types, 2), shape), 0).astype(np.int32),
        "mask": mask,
        "labels": np.array([2, 0], np.int32),
        "weight": np.ones(2, np.float32),
    }


def losses(saved, batch, **fields):
    objective = Finetune(choices=True, **fields)

    def of(model, batch):
        found = objective.losses(model, batch, train=False)
        return found, objective.logits(model, batch, train=False)

    return jit(bound(saved.model(), of))(saved.params, batch)


@pytest.mark.parametrize("family", CLASSES)
def test_logits_and_loss_equal_transformers(torch, tmp_path, family):
    """Each row alone in transformers, so that no padding is read there."""
    theirs = published(tmp_path / "m", family)
    saved = read_model(tmp_path / "m")
    assert saved.heads == ("choice",) and not saved.regression
    batch = questions(saved.spec)
    (sums, metrics), logits = losses(saved, batch)
    wanted = np.zeros(SIZES.shape)
    for (q, c), n in np.ndenumerate(SIZES):
        arguments = {"input_ids": torch.tensor(batch["tokens"][q : q + 1, c : c + 1, :n])}
        if family not in ("distilbert", "roberta"):
            arguments["token_type_ids"] = torch.tensor(batch["segments"][q : q + 1, c : c + 1, :n])
        with torch.no_grad():
            wanted[q, c] = float(theirs(**arguments).logits)
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-5)
    assert logits.shape == SIZES.shape and np.std(wanted) > 0.01
    total = torch.nn.functional.cross_entropy(
        torch.tensor(wanted), torch.tensor(batch["labels"]).long(), reduction="sum"
    )
    np.testing.assert_allclose(float(sums["task"]), float(total), rtol=1e-5)
    assert float(metrics["task_accuracy"][0]) == (wanted.argmax(1) == batch["labels"]).sum()


def test_the_loss_of_a_padded_batch_is_that_of_transformers(torch, tmp_path):
    """The mean of two questions, as the class of transformers itself computes it."""
    theirs = published(tmp_path / "m", "bert")
    saved = read_model(tmp_path / "m")
    batch = questions(saved.spec)
    (sums, _), logits = losses(saved, batch)
    arguments = {"input_ids": "tokens", "token_type_ids": "segments", "attention_mask": "mask"}
    inputs = {name: torch.tensor(batch[own]).long() for name, own in arguments.items()}
    with torch.no_grad():
        out = theirs(**inputs, labels=torch.tensor(batch["labels"]).long())
    np.testing.assert_allclose(logits, out.logits, rtol=0, atol=1e-5)
    np.testing.assert_allclose(float(sums["task"]) / 2, float(out.loss), rtol=1e-5)


@pytest.mark.parametrize("family", CLASSES)
def test_published_weights_return_byte_for_byte(tmp_path, family):
    published(tmp_path / "m", family)
    write_firth(tmp_path / "firth", read_model(tmp_path / "m"))
    write_published(tmp_path / "back", read_model(tmp_path / "firth"))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


@pytest.mark.parametrize("family", NAMES)
def test_weights_of_ones_own_are_published(torch, tmp_path, family):
    """With changed parameters the files are written anew, and transformers reads them."""
    import transformers

    published(tmp_path / "m", family)
    saved = read_model(tmp_path / "m")
    params = jax.tree.map(lambda x: x * np.float32(0.5), saved.params)
    write_published(tmp_path / "new", dataclasses.replace(saved, params=params, published=None))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "new").state_dict()
    assert params["choice"].keys() == NAMES[family].keys()
    for name, own in params["choice"].items():
        kernel = theirs[f"{NAMES[family][name]}.weight"].numpy().T
        np.testing.assert_array_equal(kernel, own["kernel"])
    assert read_model(tmp_path / "new").heads == ("choice",)


def test_a_classifier_of_texts_stays_one(tmp_path):
    """Both classes call their head `classifier`; config.json tells them apart."""
    make_bert(tmp_path / "m", "BertForSequenceClassification", num_labels=1)
    assert read_model(tmp_path / "m").heads == ("classifier",)


def test_a_pooler_of_roberta_is_no_head_of_choices(tmp_path):
    """The same tensors are the hidden layer of the head in the class for choices alone."""
    make_model(tmp_path / "m", "roberta", "gelu", "RobertaModel")
    saved = read_model(tmp_path / "m")
    assert saved.heads == () and "pooler" in saved.params["encoder"]


def test_padding_rows_and_padding_change_nothing(tmp_path):
    published(tmp_path / "m", "bert")
    saved = read_model(tmp_path / "m")
    batch = questions(saved.spec)
    (sums, _), _ = losses(saved, batch)
    wide = {k: np.pad(v, ((0, 1), (0, 0), (0, 4))[: v.ndim]) for k, v in batch.items()}
    (padded, metrics), _ = losses(saved, wide)
    np.testing.assert_allclose(float(padded["task"]), float(sums["task"]), rtol=1e-5)
    assert (
        float(metrics["task_loss"][1]) == 2 == float(Finetune(choices=True).weights(wide)["task"])
    )


def test_the_language_modelling_loss_of_choices_is_a_mean_of_their_rows(tmp_path):
    """As many times as there are choices, it would outweigh the task."""
    from firth.models.model import create
    from firth.weights.description import complete_spec

    sizes = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, max_length=16)
    spec = complete_spec({"family": "gpt", "vocab_size": 40} | sizes, "")
    model = create(spec, ("choice", "lm"))
    params = jit(model.init)(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    batch = questions(spec | {"pad_id": 0})

    def of(model, batch, **fields):
        return Finetune(lm_weight=0.5, **fields).losses(model, batch, train=False)[0]["lm"]

    loss = jit(bound(model, lambda m, b: of(m, b, choices=True)))
    whole = loss(params, batch)
    alone = []
    for (q, c), n in np.ndenumerate(SIZES):
        row = {k: batch[k][q : q + 1, c : c + 1, :n] for k in ("tokens", "segments", "mask")}
        row |= {"labels": np.zeros(1, np.int32), "weight": np.ones(1, np.float32)}
        alone.append(float(loss(params, row)))
    np.testing.assert_allclose(float(whole), np.sum(alone) / 3, rtol=1e-5)


def test_a_family_without_such_a_class_is_not_published(tmp_path):
    """Its head would be lost without a word."""
    make_model(tmp_path / "m", "gpt2", "tanh", "GPT2Model")
    saved = read_model(tmp_path / "m")
    model = dataclasses.replace(saved, heads=("choice",)).model()
    params = jax.device_get(jit(model.init)(jax.random.key(0), np.zeros((1, 8), np.int32)))[
        "params"
    ]
    own = dataclasses.replace(saved, heads=("choice",), params=params, published=None)
    with pytest.raises(FirthError, match="published layout of gpt2 has no head for choices"):
        write_published(tmp_path / "new", own)
    write_firth(tmp_path / "firth", own)
    assert read_model(tmp_path / "firth").heads == ("choice",)


def test_what_the_objective_needs():
    task = Task("t", "choice", ("a", "b"), "label", ("accuracy",), {}, ("0", "1"), choices=("c",))
    with pytest.raises(FirthError, match=r"needs two texts, but task 't' has choices"):
        Finetune.from_config({"both_orders": True}, Sources(tokenizer=None, task=task))
    assert Finetune.from_config({}, Sources(tokenizer=None, task=task)).heads == ("choice",)
