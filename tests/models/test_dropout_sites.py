"""Where dropout falls: the sites, rates, shapes and places of transformers, in training.

Both sides run with the same masks. What comes out is the same only if each of them falls on the
same array, before or after the same sum, norm and activation. Where the released code drops and
transformers does not, or the other way round, the torch side is told to (`as_released`).
"""

import functools
import inspect

import jax
import made_families
import made_models
import numpy as np
import pytest
from made_dropout import EMBEDDING, RATES, dropped_as, recorded, sites
from quick import jit

from firth.exchange import read_model
from firth.models.model import bound, family

LENGTH, LABELS = 11, 5
FIELDS = {  # ours -> transformers' output
    "lm": ("logits",),
    "mlm": ("prediction_logits", "logits"),
    "nsp": ("seq_relationship_logits",),
    "sop": ("sop_logits",),
    "rtd": ("logits",),
    "classifier": ("logits",),
}
CASES = [  # family, shape, class; every family for pretraining and with a classifier
    ("bert", "gelu", "BertForPreTraining"),
    ("bert", "gelu_tanh", "BertForSequenceClassification"),
    ("roberta", "gelu", "RobertaForMaskedLM"),
    ("roberta", "pad_4", "RobertaForSequenceClassification"),
    ("albert", "groups", "AlbertForPreTraining"),
    ("albert", "shared", "AlbertForSequenceClassification"),
    ("distilbert", "gelu", "DistilBertForMaskedLM"),
    ("distilbert", "relu", "DistilBertForSequenceClassification"),
    ("electra", "projected", "ElectraForMaskedLM"),
    ("electra", "equal", "ElectraForPreTraining"),
    ("electra", "projected", "ElectraForSequenceClassification"),
    ("modernbert", "local", "ModernBertForMaskedLM"),
    ("modernbert", "pairs", "ModernBertForSequenceClassification"),
    ("gpt", "gelu", "OpenAIGPTLMHeadModel"),
    ("gpt", "gelu", "OpenAIGPTForSequenceClassification"),
    ("gpt2", "inner", "GPT2LMHeadModel"),
    ("gpt2", "tanh", "GPT2ForSequenceClassification"),
]


def made(directory, name, shape, published, **settings):
    """(transformers' model in training, the same read by Firth), with the rates of `RATES`."""
    rates = RATES | (dict(embedding_dropout=EMBEDDING) if name in ("gpt", "gpt2") else {})
    settings |= {family(name).FIELDS[field]: rate for field, rate in rates.items()}
    if name == "modernbert":
        settings["embedding_dropout"] = RATES["dropout"]
    if "Sequence" in published:
        settings["num_labels"] = LABELS
    if name == "bert":
        theirs = made_models.make_published(directory, published, shape, **settings)
    else:
        theirs = made_families.make(directory, name, shape, published, **settings)
    saved = read_model(directory)
    assert {field: saved.spec[field] for field in rates} == rates
    return theirs.train(), saved


def as_released(theirs, name):
    """Put dropout where the released code has it, if transformers' port of it has it elsewhere."""
    import torch
    from torch.nn import functional

    if name == "albert":
        rate = theirs.config.hidden_dropout_prob
        for part, module in theirs.named_modules():
            if part.endswith("ffn_output"):  # modeling.py drops what the MLP puts out, as BERT does
                module.register_forward_hook(lambda m, i, out: functional.dropout(out, rate))
            if part == "sop_classifier":  # run_pretraining.py drops nothing before this head
                module.dropout = torch.nn.Identity()
    if name in ("gpt", "gpt2") and hasattr(theirs, "score"):  # train.py: `clf_pdrop`, a mask a text
        rate = theirs.config.summary_first_dropout

        def drop(module, inputs):
            (x_BLD,) = inputs
            return x_BLD * functional.dropout(torch.ones_like(x_BLD[:, 0]), rate)[:, None]

        theirs.score.register_forward_pre_hook(drop)


def batch(spec, seed=0):
    """(tokens, segments, mask) with padding at the end of two rows of three."""
    rng = np.random.default_rng(seed)
    pad = spec.get("pad_id", 0)
    mask = np.arange(LENGTH) < np.array([[LENGTH], [7], [4]])
    tokens = np.where(mask, rng.integers(pad + 1, spec["vocab_size"], mask.shape), pad)
    return tokens, rng.integers(0, max(spec.get("type_vocab_size", 0), 1), mask.shape), mask


def heads_of(model, tokens, segments, mask, *, train=True):
    """{head: logits} of a bound model, as the objectives compute them."""
    out = model.encoder(tokens, segments, mask, train=train)
    apply = {
        "mlm": lambda: model.mlm(out.last),
        "lm": lambda: model.lm(out.last),
        "nsp": lambda: model.nsp(out.pooled),
        "sop": lambda: model.sop(out.pooled),
        "rtd": lambda: model.rtd(out.last),
        "classifier": lambda: model.classify(out, mask, train=train),
    }
    return {head: apply[head]() for head in model.heads}


def run_ours(model, params, function):
    """(what a function of the bound model puts out, the masks that it used)."""

    def run(params, key):
        return bound(model, function)(params, rngs={"dropout": key})

    with recorded() as found:
        out = jax.device_get(jit(run)(params, jax.random.key(0)))
    return out, found


def assert_close(ours, theirs):
    """To 1e-5 of the largest."""
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else theirs
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(("name", "shape", "published"), CASES)
def test_dropout_falls_where_the_reference_has_it(tmp_path, name, shape, published):
    torch = pytest.importorskip("torch")
    theirs, saved = made(tmp_path / "m", name, shape, published)
    as_released(theirs, name)
    tokens, segments, mask = batch(saved.spec)
    run = functools.partial(heads_of, tokens=tokens, segments=segments, mask=mask)
    out, masks = run_ours(saved.model(), saved.params, run)
    given = dict(input_ids=torch.tensor(tokens), attention_mask=torch.tensor(mask).long())
    if "token_type_ids" in inspect.signature(theirs.forward).parameters and "gpt" not in name:
        given["token_type_ids"] = torch.tensor(segments)
    with dropped_as(masks) as used, torch.no_grad():
        expected = theirs(**given)
    assert sorted(used) == sites(masks)
    for head in saved.heads:
        field = next(field for field in FIELDS[head] if field in expected)
        real = np.where(mask) if out[head].ndim == 3 else ...
        assert_close(out[head][real], expected[field].numpy()[real])
