"""Parity with transformers, block by block and whole, and the papers' parameter counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.published.bert import SHAPES, make_bert
from helpers.quick import jit

from firth.errors import FirthError
from firth.layers.attention import MultiHeadAttention, mask_to_bias
from firth.layers.heads import ClassifierHead, MaskedLMHead
from firth.layers.transformer import Block
from firth.models import bert
from firth.models.model import create, parameter_count, to_layout
from firth.weights.read import read_model

TOLERANCE = 1e-5


def batch(spec, rows=4, length=11, seed=0):
    """Random ids and segments; padding at the end of some rows, and one hole in the middle."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, spec["vocab_size"], (rows, length))
    segments = rng.integers(0, spec["type_vocab_size"], (rows, length))
    mask = np.arange(length) < rng.integers(3, length + 1, (rows, 1))
    mask[0] = True
    mask[1, 2] = False
    return tokens, segments, mask


def close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs.detach().numpy(), rtol=0, atol=TOLERANCE)


def run_torch(torch, model, tokens, segments, mask):
    with torch.no_grad():
        return model(
            torch.tensor(tokens),
            attention_mask=torch.tensor(mask.astype(np.int64)),
            token_type_ids=torch.tensor(segments),
            output_hidden_states=True,
            output_attentions=True,
        )


@pytest.mark.parametrize(("shape", "scan"), [("gelu", False), ("gelu_tanh", True), ("relu", True)])
def test_whole_model_equals_transformers(torch, tmp_path, shape, scan):
    theirs = make_bert(tmp_path / "m", "BertForPreTraining", shape)
    saved = read_model(tmp_path / "m")
    model = saved.model(scan=scan)
    params = to_layout(saved.params, scan)
    tokens, segments, mask = batch(saved.spec)
    apply = jit(lambda p, *args: model.apply({"params": p}, *args, attentions=True))
    out, logits = apply(params, tokens, segments, mask)

    expected = run_torch(torch, theirs, tokens, segments, mask)
    assert out.hidden.shape[0] == SHAPES[shape]["num_hidden_layers"] + 1
    for ours, hidden in zip(out.hidden, expected.hidden_states, strict=True):
        close(ours, hidden)
    for ours, probs in zip(out.attentions, expected.attentions, strict=True):
        close(ours, probs)
    close(out.last, expected.hidden_states[-1])
    pooled = theirs.bert.pooler(expected.hidden_states[-1])
    close(out.pooled, pooled)
    close(logits["mlm"], expected.prediction_logits)
    close(logits["nsp"], expected.seq_relationship_logits)
    # Not vacuous: the outputs are of a size at which the tolerance says something.
    assert np.abs(out.hidden).mean() > 0.1 and np.std(logits["mlm"]) > 0.1


@pytest.mark.parametrize("labels", [1, 5])
def test_classifier_equals_transformers(torch, tmp_path, labels):
    name = "BertForSequenceClassification"
    theirs = make_bert(tmp_path / "m", name, "gelu_tanh", num_labels=labels)
    saved = read_model(tmp_path / "m")
    tokens, segments, mask = batch(saved.spec)
    _, logits = saved.model().apply({"params": saved.params}, tokens, segments, mask)
    assert logits["classifier"].shape == (4, labels)
    close(logits["classifier"], run_torch(torch, theirs, tokens, segments, mask).logits)


def test_defaults_for_segments_and_mask_are_those_of_transformers(torch, tmp_path):
    theirs = make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    tokens, *_ = batch(saved.spec)
    out, _ = saved.model().apply({"params": saved.params}, tokens)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens))
    close(out.last, expected.last_hidden_state)
    close(out.pooled, expected.pooler_output)


@pytest.fixture(scope="module", params=SHAPES)
def blocks(request, tmp_path_factory):
    """(transformers model, ours, its config, hidden states [B, L, D], additive bias)."""
    directory = tmp_path_factory.mktemp("blocks") / "m"
    theirs = make_bert(directory, "BertForPreTraining", request.param, seed=3)
    saved = read_model(directory)
    _, _, mask = batch(saved.spec)
    rng = np.random.default_rng(5)
    x_BLD = rng.normal(size=(4, 11, saved.spec["hidden_size"])).astype(np.float32)
    return theirs, saved, saved.model().encoder.config, x_BLD, mask_to_bias(jnp.asarray(mask))


def test_embeddings(torch, blocks):
    theirs, saved, *_ = blocks
    tokens, segments, mask = batch(saved.spec, seed=7)
    out, _ = saved.model().apply({"params": saved.params}, tokens, segments, mask)
    args = dict(input_ids=torch.tensor(tokens), token_type_ids=torch.tensor(segments))
    close(out.hidden[0], theirs.bert.embeddings(**args))


def test_attention(torch, blocks):
    theirs, saved, config, x_BLD, bias = blocks
    params = saved.params["encoder"]["stack"]["layer_1"]["attention"]
    module = MultiHeadAttention(config.num_heads)
    out_BLD, probs = module.apply({"params": params}, x_BLD, bias, train=False)
    attention = theirs.bert.encoder.layer[1].attention
    x, b = torch.tensor(x_BLD), torch.tensor(np.asarray(bias))
    context, expected = attention.self(x, b)
    close(probs, expected)
    close(out_BLD, attention.output.dense(context))


def test_layer(torch, blocks):
    theirs, saved, config, x_BLD, bias = blocks
    params = saved.params["encoder"]["stack"]["layer_0"]
    out_BLD, _ = Block(config).apply({"params": params}, x_BLD, bias, False, False)
    expected = theirs.bert.encoder.layer[0](torch.tensor(x_BLD), torch.tensor(np.asarray(bias)))
    close(out_BLD, expected[0] if isinstance(expected, tuple) else expected)


def test_heads(torch, blocks):
    theirs, saved, config, x_BLD, _ = blocks
    table_VD = saved.params["encoder"]["word"]["embedding"]
    ours = MaskedLMHead(config).apply(
        {"params": saved.params["mlm"]}, x_BLD, lambda h: h @ table_VD.T
    )
    close(ours, theirs.cls.predictions(torch.tensor(x_BLD)))
    nsp = ClassifierHead(config, 2).apply({"params": saved.params["nsp"]}, x_BLD[:, 0])
    close(nsp, theirs.cls.seq_relationship(torch.tensor(x_BLD[:, 0])))


def count(heads=(), **spec):
    model = create({"family": "bert", "scan": True} | spec, heads)
    return parameter_count(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), int)))


@pytest.mark.parametrize(
    ("name", "vocab", "parameters"),
    [
        ("base", 30522, 109_482_240),
        ("base", 28996, 108_310_272),
        ("base", 119547, 177_853_440),
        ("base", 105879, 167_356_416),
        ("base", 21128, 102_267_648),
        ("large", 30522, 335_141_888),
        ("large", 28996, 333_579_264),
    ],
)
def test_parameter_counts_of_the_papers_models(name, vocab, parameters):
    assert count(vocab_size=vocab, **bert.size(name)) == parameters


def test_parameter_counts_of_the_heads():
    base, large = bert.size("base"), bert.size("large")
    assert count(("mlm",), **base) - count(**base) == 622_650
    assert count(("nsp",), **base) - count(**base) == 1_538
    assert count(("mlm", "nsp"), **base) == 110_106_428
    assert count(("mlm", "nsp"), **large) == 336_226_108
    assert count(pooler=False, **base) == 108_891_648


MINIATURES = {  # Turc et al. 2019, encoder and pooler: layers -> widths 128, 256, 512, 768
    2: (4_385_920, 9_591_040, 22_458_880, 38_603_520),
    4: (4_782_464, 11_170_560, 28_763_648, 52_779_264),
    6: (5_179_008, 12_750_080, 35_068_416, 66_955_008),
    8: (5_575_552, 14_329_600, 41_373_184, 81_130_752),
    10: (5_972_096, 15_909_120, 47_677_952, 95_306_496),
    12: (6_368_640, 17_488_640, 53_982_720, 109_482_240),
}


def test_parameter_counts_of_the_miniatures():
    for layers, counts in MINIATURES.items():
        for width, parameters in zip((128, 256, 512, 768), counts, strict=True):
            assert count(**bert.size(f"{layers}x{width}")) == parameters, (layers, width)
    named = {"tiny": "2x128", "mini": "4x256", "small": "4x512", "medium": "8x512"}
    assert all(bert.size(name) == bert.size(same) for name, same in named.items())


def test_an_unknown_size_names_the_known_ones():
    with pytest.raises(FirthError, match=r"no size 'huge'; choose one of .*base, large"):
        bert.size("huge")
