"""Dropout of XLNet and Transformer-XL, in training, with the masks of transformers' XLNet.

Transformers has no Transformer-XL any more; its XLNet with `attn_type="uni"` and no segments is
one, but for the scale of the embeddings, which a hook adds.
"""

import json
import math

import jax
import numpy as np
import pytest
from helpers.dropout import RATES, dropped_as, recorded, sites
from helpers.published.xlnet import SHAPES, make_xlnet, orders, rows
from helpers.quick import jit

from firth.models.model import bound, create
from firth.weights.read import read_model

B, L, P, M = 4, 11, 5, 7
R = {"bi": M + L + L, "uni": M + L + 1}  # relative positions


def in_training(theirs):
    """The torch model in training, with a rate of its own for the attention's probabilities."""
    import torch

    class ByAxes(torch.nn.Module):
        """transformers has one rate for both; the released code has `dropout` and `dropatt`."""

        def forward(self, x):
            rate = RATES["attention_dropout" if x.ndim == 4 else "dropout"]
            return torch.nn.functional.dropout(x, rate, self.training)

    for layer in theirs.transformer.layer:
        layer.rel_attn.dropout = ByAxes()
    return theirs.train()


def as_torch_lays_them(found, length_of_distances, positions=None):
    """The masks as torch's arrays lie: rows second, and those of the query stream's scores over
    all L positions, of which it takes the P that are predicted.

    The encodings of relative positions have here one mask for all rows of a direction, as in
    Transformer-XL's code; XLNet's has one for each row, which are made equal there.
    """
    laid = []
    for rate, mask in found:
        if mask.ndim == 3 and mask.shape[1] == length_of_distances:
            mask = np.repeat(mask, B // len(mask), axis=0)
        if mask.ndim == 3:
            mask = mask.swapaxes(0, 1)
        if mask.ndim == 4 and mask.shape[2] == P:
            whole = np.ones((*mask.shape[:2], L, mask.shape[3]), bool)
            whole[np.arange(B)[:, None], :, positions] = mask.swapaxes(1, 2)
            mask = whole
        laid.append((rate, mask))
    return laid


def memory_of(width, layers, seed=5):
    """(ours, theirs): a full memory of random numbers."""
    import torch

    hidden = np.random.default_rng(seed).normal(size=(B, layers, M, width)).astype(np.float32)
    theirs = [torch.tensor(hidden[:, n].swapaxes(0, 1)) for n in range(layers)]
    return {"hidden": hidden, "filled": np.full(B, M, np.int32)}, theirs


def run_ours(model, params, function):
    with recorded(batch=B) as found:
        run = jit(
            lambda params: bound(model, function)(params, rngs={"dropout": jax.random.key(0)})
        )
        return jax.device_get(run(params)), found


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=0, atol=2e-5)


def assert_hidden(out, expected, streams=1):
    """Every layer, and the memory: before the last dropout on both sides."""
    for ours, layer in zip(out.hidden, expected.hidden_states[::streams], strict=True):
        assert_close(ours, layer)
    for n, memory in enumerate(expected.mems):
        assert_close(out.memory["hidden"][:, n], memory.transpose(0, 1))


@pytest.mark.parametrize("backwards", [False, True])
def test_xlnet_with_two_streams(backwards, tmp_path):
    import torch

    theirs = in_training(make_xlnet(tmp_path, dropout=RATES["dropout"]))
    theirs.transformer.mem_len, theirs.transformer.reuse_len = M, 5
    theirs.transformer.bi_data = backwards
    saved = read_model(tmp_path)
    model = create(saved.spec | {"attention_dropout": RATES["attention_dropout"]}, ("lm",))
    tokens, segments = rows(B=B, L=L)
    ranks, positions = orders(B, L, P)
    memory, mems = memory_of(model.encoder.config.hidden_size, model.encoder.config.num_layers)

    def streams(model):
        given = (tokens, segments, np.ones((B, L), bool), ranks, positions)
        options = dict(train=True, memory=memory, kept=5, backwards=backwards)
        out, query = model.encoder.two_streams(*given, **options)
        return out, model.lm(query)

    (out, logits), found = run_ours(model, saved.params, streams)
    laid = as_torch_lays_them(found, R["bi"], positions)
    blocked = ranks[:, None, :] > ranks[:, :, None]
    blocked |= (ranks[:, None, :] == ranks[:, :, None]) & (ranks[:, None, :] > 0)
    with dropped_as(laid) as used, torch.no_grad():
        expected = theirs(
            torch.tensor(tokens).long(),
            token_type_ids=torch.tensor(segments).long(),
            perm_mask=torch.tensor(blocked).float(),
            target_mapping=torch.tensor(np.eye(L)[positions]).float(),
            mems=mems,
            use_mems=True,
            output_hidden_states=True,
        )
    assert sorted(used) == sites(laid)
    assert_close(logits, expected.logits)
    assert_hidden(out, expected, streams=2)
    np.testing.assert_array_equal(out.last, out.hidden[-1])  # of the stream that is not put out


def test_xlnet_with_a_classifier(tmp_path):
    import torch

    rates = dict(dropout=RATES["dropout"], summary_last_dropout=RATES["classifier_dropout"])
    name = "XLNetForSequenceClassification"
    theirs = in_training(make_xlnet(tmp_path, name=name, num_labels=3, **rates))
    saved = read_model(tmp_path)
    spec = saved.spec | {"attention_dropout": RATES["attention_dropout"]}
    model = create(spec, ("classifier",), 3)
    tokens, segments = rows(B=B, L=L)

    def classify(model):
        out = model.encoder(tokens, segments, train=True)
        return model.classify(out, train=True)

    logits, found = run_ours(model, saved.params, classify)
    laid = as_torch_lays_them(found, 2 * L)
    with dropped_as(laid) as used, torch.no_grad():
        expected = theirs(torch.tensor(tokens).long(), token_type_ids=torch.tensor(segments).long())
    assert sorted(used) == sites(laid)
    assert_close(logits, expected.logits)


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(same_length=True),
        dict(clamp_len=4),
        dict(untie_r=True),
        dict(clamp_len=3, same_length=True, activation="gelu"),
    ],
    ids=str,
)
def test_transformer_xl(options, tmp_path):
    """Every option, the scale of the embeddings, memory, dropout: as one torch model computes it.

    Without memory's last dropout, and with it on what is scored.
    """
    import torch

    options = dict(same_length=False, clamp_len=0, untie_r=False, activation="relu") | options
    shape = SHAPES["clamped"] | dict(ff_activation=options["activation"])
    shape |= dict(clamp_len=options["clamp_len"] or -1, same_length=options["same_length"])
    theirs = in_training(make_xlnet(tmp_path, "clamped", dropout=RATES["dropout"], **shape))
    body, width = theirs.transformer, shape["d_model"]
    body.attn_type, body.mem_len = "uni", M
    body.word_embedding.register_forward_hook(lambda module, i, out: out * math.sqrt(width))
    if not options["untie_r"]:
        for layer in body.layer:
            layer.rel_attn.r_w_bias = body.layer[0].rel_attn.r_w_bias
            layer.rel_attn.r_r_bias = body.layer[0].rel_attn.r_r_bias
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"same_length": False}))
    saved = read_model(tmp_path)
    fields = ("vocab_size", "num_layers", "hidden_size", "num_heads", "intermediate_size")
    spec = {field: saved.spec[field] for field in fields} | options
    spec |= dict(family="transformer_xl", norm_epsilon=shape["layer_norm_eps"])
    spec |= {rate: RATES[rate] for rate in ("dropout", "attention_dropout")}
    model = create(spec, ("lm",))
    tokens, _ = rows("clamped", B, L)
    memory, mems = memory_of(width, spec["num_layers"])

    def score(model):
        out = model.encoder(tokens, train=True, memory=memory)
        return out, model.lm(out.last)

    (out, logits), found = run_ours(model, causal_part(saved.params, options["untie_r"]), score)
    laid = as_torch_lays_them(found, R["uni"])
    with dropped_as(laid) as used, torch.no_grad():
        given = torch.tensor(tokens).long()
        expected = theirs(given, mems=mems, use_mems=True, output_hidden_states=True)
    assert sorted(used) == sites(laid)
    assert_close(logits, expected.logits)
    assert_hidden(out, expected)


def causal_part(params, untied):
    """An XLNet's parameters without those of segments and queries; biases of layer 0 for all."""
    encoder = {name: value for name, value in params["encoder"].items() if name != "mask_embedding"}
    stack, shared = {}, ("content_bias", "position_bias")
    for name, layer in encoder["stack"].items():
        dropped = ("segment_bias", "segment_embedding", *(() if untied else shared))
        kept = {k: v for k, v in layer["attention"].items() if k not in dropped}
        stack[name] = layer | {"attention": kept}
    if not untied:
        stack |= {name: encoder["stack"]["layer_0"]["attention"][name] for name in shared}
    return params | {"encoder": encoder | {"stack": stack}}
