"""Where dropout falls: the sites, rates, shapes and places of transformers, in training.

Both sides run with the same masks. What comes out is the same only if each of them falls on the
same array, before or after the same sum, norm and activation. Where the released code drops and
transformers does not, or the other way round, the torch side is told to (`as_released`).
"""

import dataclasses
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import steps
from helpers.cases import with_each_change
from helpers.dropout import EMBEDDING, RATES, dropped_as, recorded, sites
from helpers.published.bert import make_bert
from helpers.published.families import make_model
from helpers.quick import jit

from firth.models.model import bound, create, family
from firth.run.outline import outline
from firth.weights.read import read_model

ROWS, LENGTH, LABELS = 3, 11, 5
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
    settings |= {family(name).PUBLISHED.fields[field]: rate for field, rate in rates.items()}
    if name == "modernbert":
        settings["embedding_dropout"] = RATES["dropout"]
    if "Sequence" in published:
        settings["num_labels"] = LABELS
    if name == "bert":
        theirs = make_bert(directory, published, shape, **settings)
    else:
        theirs = make_model(directory, name, shape, published, **settings)
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
        "nsp": lambda: model.head("nsp")(out.pooled),
        "sop": lambda: model.head("sop")(out.pooled),
        "rtd": lambda: model.head("rtd")(out.last),
        "classifier": lambda: model.classify(out, mask, train=train),
    }
    return {head: apply[head]() for head in model.heads}


def run_ours(model, params, function):
    """(what a function of the bound model puts out, the masks that it used)."""

    def run(params, key):
        return bound(model, function)(params, rngs={"dropout": key})

    with recorded(batch=ROWS) as found:
        out = jax.device_get(jit(run)(params, jax.random.key(0)))
    return out, found


def assert_close(ours, theirs):
    """To 1e-5 of the largest."""
    theirs = theirs.detach().numpy() if hasattr(theirs, "detach") else theirs
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(("name", "shape", "published"), CASES)
def test_dropout_falls_where_the_reference_has_it(tmp_path, name, shape, published):
    import torch

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


def test_gpt_drops_entries_of_its_one_matrix(tmp_path):
    """`matrix_dropout`, as train.py of the 2018 release: tokens and positions, the same entries
    for all rows and places; the softmax and the evaluation see the matrix whole."""
    import torch

    theirs, saved = made(tmp_path / "m", "gpt", "gelu", "OpenAIGPTLMHeadModel")
    model = create(saved.spec | dict(matrix_dropout=True), ("lm",))
    tokens, _, mask = batch(saved.spec)
    run = functools.partial(heads_of, tokens=tokens, segments=None, mask=mask)
    out, masks = run_ours(model, saved.params, run)
    body, whole = theirs.transformer, dict(attention_mask=torch.tensor(mask).long())
    words, places = body.tokens_embed.weight, body.positions_embed.weight
    body.drop = torch.nn.Identity()
    with dropped_as(masks) as used, torch.no_grad():
        matrix = torch.nn.functional.dropout(torch.cat([words, places]), EMBEDDING)
        e_BLD = matrix[torch.tensor(tokens)] + matrix[len(words) :][:LENGTH]
        expected = theirs(inputs_embeds=e_BLD - places[:LENGTH], **whole).logits
    assert sorted(used) == sites(masks)
    assert_close(out["lm"][mask], expected.numpy()[mask])
    evaluated, none = run_ours(model, saved.params, functools.partial(run, train=False))
    with torch.no_grad():
        expected = theirs.eval()(torch.tensor(tokens), **whole).logits
    assert_close(evaluated["lm"][mask], expected.numpy()[mask])
    assert none == []


# ------------------------------------------------------------- what the objectives make of it


def small_run(name, off=False):
    """The outline of a small pretraining recipe whose rates differ, or are all 0."""
    fields = {f.name for f in dataclasses.fields(family(name).Config)} & {
        *RATES,
        "embedding_dropout",
    }
    rates = {f"model.{field}": 0.0 if off else RATES.get(field, EMBEDDING) for field in fields}
    layers = {"feedforward": {}, "rhn": {}}.get(
        name, {"model.num_layers": 3}
    )  # of which some have 1
    return outline(steps.small(name, rates | {"model.scan": False} | layers))


def sites_of(run, function, key=True, **options):
    """The sites of a function (bound model, corrupted batch, **options), which is only traced.

    Without a `key` for dropout, to draw any mask is an error.
    """

    def traced(seed):
        tokens = jnp.zeros((1, 8), jnp.int32)
        params = run.model.init(seed, tokens)["params"]
        batch = {name: jnp.zeros(x.shape, x.dtype) for name, x in run.batch.items()}
        batch = run.objective.corrupt(batch, seed)
        if carry := run.objective.carry(run.model, len(batch["tokens"])):
            batch |= {"carry": carry}
        rngs = {"dropout": seed} if key else None
        return bound(run.model, functools.partial(function, **options))(params, batch, rngs=rngs)

    with recorded() as found:
        jax.eval_shape(traced, jax.random.key(0))
    return sites(found)


def bert_sites(batch, spec, layers, places=0, **changes):
    """Those of systems like BERT: the embeddings, and in each layer probabilities and two sums.

    The last layer may be of some places a row alone.
    """
    spec = spec | changes
    B, L = batch["tokens"].shape
    found = [(RATES["dropout"], (B, L, spec["embedding_size"]))]
    for P in [L] * (layers - 1) + [places or L]:
        found += 2 * [(RATES["dropout"], (B, P, spec["hidden_size"]))]
        found += [(RATES["attention_dropout"], (B, spec["num_heads"], P, L))]
    return found


# Elman's network drops nothing, and ELMo's objective reads more than its encoder does.
PRETRAINED = sorted(steps.FAMILIES.keys() - {"rnn", "elmo"})
OFTEN = ("bert", "distilbert", "electra", "xlnet", "transformer_xl", "gpt2", "awd_lstm")


@pytest.mark.parametrize("name", with_each_change(OFTEN, PRETRAINED))
def test_pretraining_drops_in_the_model_that_learns_and_evaluation_nowhere(name):
    """Not in a teacher; in the layers of a generator, over embeddings that are the other's."""
    run = small_run(name)

    def encode(model, batch, train):
        texts = batch["tokens"], batch["segments"], batch["mask"]
        options = dict(memory=batch["carry"]) if "carry" in batch else {}
        if name == "xlnet":
            given = *texts, batch["ranks"], batch["positions"]
            backwards = run.objective.backwards
            return model.encoder.two_streams(*given, train=train, backwards=backwards, **options)
        if "mlm" in run.model.heads and name != "distilbert":  # whose cosine is of all tokens
            pair = [(0, 0), (int(run.objective.pairs != "none"), 0)]  # the first token's
            return model.read_at(jnp.pad(batch["positions"], pair), *texts, train=train)
        return model.encoder(*texts, train=train, **options)

    found = sites_of(run, run.objective.losses, train=True)
    if name == "electra":
        generator = dict(run.model.generator.encoder.config.__dict__)
        P, width = run.objective.masked.max_predictions, run.spec["embedding_size"]
        expected = bert_sites(run.batch, run.spec, run.spec["num_layers"])
        layers = generator["num_layers"]
        expected += bert_sites(run.batch, generator, layers, P, embedding_size=width)
    else:
        expected = sites_of(run, encode, train=True)
    assert found == sorted(expected) and found
    assert sites_of(run, run.objective.losses, key=False, train=False) == []


@pytest.mark.parametrize(
    "name", ["bert", "modernbert", "gpt", "xlnet"]
)  # one of each kind of layer
def test_rates_of_zero_need_no_key(name):
    run = small_run(name, off=True)
    assert sites_of(run, run.objective.losses, key=False, train=True) == []
