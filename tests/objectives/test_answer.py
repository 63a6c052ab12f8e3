"""The head and the loss of answers against transformers, in every family that publishes them."""

import jax
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.published.bert import make_bert
from helpers.published.families import SHAPES, make_model
from helpers.published.xlnet import make_xlnet
from helpers.quick import jit

from firth.errors import FirthError
from firth.models.model import bound
from firth.objectives.answer import Answer
from firth.objectives.objective import Sources
from firth.weights.read import read_model
from firth.weights.write import write_firth, write_published

CLASSES = {
    "bert": "BertForQuestionAnswering",
    "roberta": "RobertaForQuestionAnswering",
    "albert": "AlbertForQuestionAnswering",
    "electra": "ElectraForQuestionAnswering",
    "distilbert": "DistilBertForQuestionAnswering",
    "xlnet": "XLNetForQuestionAnsweringSimple",
}


def published(folder, family):
    """A published model with random weights; the torch model."""
    if family == "bert":
        return make_bert(folder, CLASSES[family])
    if family == "xlnet":
        return make_xlnet(folder, name=CLASSES[family])
    return make_model(folder, family, next(iter(SHAPES[family])), CLASSES[family])


def rows(spec, lengths, seed=0):
    """A batch of rows of these lengths, padded at the end."""
    rng = np.random.default_rng(seed)
    B, L, pad = len(lengths), max(lengths), spec.get("pad_id", 0)
    mask = np.arange(L) < np.array(lengths)[:, None]
    tokens = np.where(mask, rng.integers(pad + 1, spec["vocab_size"], (B, L)), pad)
    types = max(spec.get("type_vocab_size", 1), 1)
    return {
        "tokens": tokens,
        "segments": np.where(mask, rng.integers(0, min(types, 2), (B, L)), 0),
        "mask": mask,
        "starts": np.array([rng.integers(0, n) for n in lengths]),
        "ends": np.array([rng.integers(0, n) for n in lengths]),
        "weight": np.ones(B, np.float32),
    }


def losses(saved, batch):
    objective = Answer()

    def of(model, batch):
        return objective.losses(model, batch, train=False), objective.logits(
            model, batch, train=False
        )

    return jit(bound(saved.model(), of))(saved.params, batch)


@pytest.mark.parametrize("family", with_each_change(["bert", "distilbert", "xlnet"], CLASSES))
def test_logits_and_loss_equal_transformers(torch, tmp_path, family):
    """Padded rows too: transformers reads each row alone, so that its softmax has no padding."""
    theirs = published(tmp_path / "m", family)
    saved = read_model(tmp_path / "m")
    assert saved.heads == ("answer",)
    lengths = [11, 7, 10]
    batch = rows(saved.spec, lengths)
    ((sums, metrics), logits) = losses(saved, batch)
    total, right = 0.0, 0
    for r, n in enumerate(lengths):
        arguments = {"input_ids": torch.tensor(batch["tokens"][r : r + 1, :n])}
        if family not in ("distilbert", "roberta"):
            arguments["token_type_ids"] = torch.tensor(batch["segments"][r : r + 1, :n])
        places = [torch.tensor(batch[name][r : r + 1]) for name in ("starts", "ends")]
        with torch.no_grad():
            out = theirs(**arguments, start_positions=places[0], end_positions=places[1])
        for k, wanted in enumerate((out.start_logits, out.end_logits)):
            np.testing.assert_allclose(logits[r, :n, k], wanted[0], rtol=0, atol=3e-5)
        assert (logits[r, n:] <= -1e9).all()
        total += float(out.loss)
        both = [out.start_logits.argmax() == places[0], out.end_logits.argmax() == places[1]]
        right += all(bool(one) for one in both)
    np.testing.assert_allclose(float(sums["answer"]), total, rtol=1e-5)
    assert np.std(logits[0]) > 0.1
    assert float(metrics["answer_loss"][0] / metrics["answer_loss"][1]) == pytest.approx(total / 3)
    assert float(metrics["answer_accuracy"][0]) == right


@pytest.mark.parametrize("family", CLASSES)
def test_published_weights_return_byte_for_byte(tmp_path, family):
    published(tmp_path / "m", family)
    write_firth(tmp_path / "firth", read_model(tmp_path / "m"))
    write_published(tmp_path / "back", read_model(tmp_path / "firth"))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_weights_of_ones_own_are_published(torch, tmp_path, family):
    """With changed parameters the files are written anew, and transformers reads them."""
    import dataclasses

    import transformers

    published(tmp_path / "m", family)
    saved = read_model(tmp_path / "m")
    params = jax.tree.map(lambda x: x * np.float32(0.5), saved.params)
    write_published(tmp_path / "new", dataclasses.replace(saved, params=params, published=None))
    theirs = getattr(transformers, CLASSES[family]).from_pretrained(tmp_path / "new")
    kernel = theirs.qa_outputs.weight.detach().numpy().T
    np.testing.assert_array_equal(kernel, params["answer"]["dense"]["kernel"])
    assert read_model(tmp_path / "new").heads == ("answer",)


def test_padding_rows_and_padding_change_nothing(tmp_path):
    make_bert(tmp_path / "m", CLASSES["bert"])
    saved = read_model(tmp_path / "m")
    batch = rows(saved.spec, [9, 6])
    (sums, _), _ = losses(saved, batch)
    wide = {k: np.pad(v, ((0, 1), (0, 4))[: v.ndim]) for k, v in batch.items()}
    (padded, metrics), _ = losses(saved, wide)
    np.testing.assert_allclose(float(padded["answer"]), float(sums["answer"]), rtol=1e-5)
    assert float(metrics["answer_loss"][1]) == 2 == float(Answer().weights(wide)["answer"])


def test_what_the_objective_needs():
    with pytest.raises(FirthError, match=r"has no such task; use squad\.py"):
        Answer.from_config({}, Sources(tokenizer=None))
    with pytest.raises(FirthError, match=r"objective\.max_answer=0: expected 1 token or more"):
        Answer(max_answer=0)
