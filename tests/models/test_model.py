"""Building by name, the two layouts of layers, and laying loaded weights over fresh ones."""

import jax
import numpy as np
import pytest
from helpers.quick import initial

from firth.errors import FirthError
from firth.models.model import concat_pooled, create, last_real, merge_params, to_layout

SPEC = dict(
    family="bert",
    vocab_size=11,
    num_layers=12,
    hidden_size=4,
    num_heads=2,
    intermediate_size=6,
    max_length=5,
)
TOKENS = np.zeros((1, 3), np.int32)


def params_of(seed=0, heads=("mlm", "classifier"), labels=3, **changes):
    model = create(SPEC | changes, heads, num_labels=labels)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(size=s.shape).astype(s.dtype), shapes)


def assert_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_layouts_hold_the_same_numbers_in_the_order_of_the_layers():
    loop = params_of()
    scan = to_layout(loop, scan=True)
    assert jax.tree.map(np.shape, scan) == jax.tree.map(np.shape, params_of(scan=True))
    stacked = scan["encoder"]["stack"]["layers"]["mlp_in"]["kernel"]
    for i in range(12):  # 10 comes after 9, not after 1
        kernel = loop["encoder"]["stack"][f"layer_{i}"]["mlp_in"]["kernel"]
        np.testing.assert_array_equal(stacked[i], kernel)
    assert_equal(to_layout(scan, scan=False), loop)
    assert_equal(to_layout(scan, scan=True), scan)
    assert_equal(to_layout(loop, scan=False), loop)


def test_segments_mean_nothing_to_a_body_with_one_kind():
    changes = dict(type_vocab_size=1)
    model, params = create(SPEC | changes, ()), params_of(heads=(), **changes)
    one, other = (
        model.apply({"params": params}, TOKENS, segments)[0].last
        for segments in (None, np.ones_like(TOKENS))
    )
    np.testing.assert_array_equal(one, other)


def test_the_last_real_token():
    mask = np.array([[1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 0]], bool)
    np.testing.assert_array_equal(last_real(mask), [1, 1, 2, 0])


def test_what_fits_is_loaded_and_heads_may_stay_fresh():
    fresh, loaded = params_of(1), params_of(2, labels=7)
    del loaded["mlm"], loaded["encoder"]["pooler"]
    laid, stayed = merge_params(fresh, loaded, "weights/")
    assert {name.rpartition("/")[0] for name in stayed} == {
        "encoder/pooler",
        "mlm",
        "mlm/dense",
        "mlm/norm",
        "classifier/dense",
    }
    for head in ("mlm", "classifier"):
        assert_equal(laid[head], fresh[head])
    assert_equal(laid["encoder"].pop("pooler"), fresh["encoder"]["pooler"])
    assert_equal(laid["encoder"], loaded["encoder"])
    assert merge_params(fresh, params_of(2), "w")[1] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_layers=11), r"w/: encoder/stack/layer_11/.* is missing, but this model's is"),
        (dict(vocab_size=12), r"encoder/word/embedding is of shape \[12, 4\], .* is \[11, 4\]"),
    ],
)
def test_weights_of_another_encoder_are_refused(changes, message):
    with pytest.raises(FirthError, match=message):
        merge_params(params_of(), params_of(**changes), "w/")


def test_heads_are_there_when_asked_for():
    model = create(SPEC, ("nsp",))
    out, logits = jax.eval_shape(lambda k: model.init_with_output(k, TOKENS)[0], jax.random.key(0))
    assert set(logits) == {"nsp"} and logits["nsp"].shape == (1, 2)
    assert out.hidden.shape == (13, 1, 3, 4) and out.pooled.shape == (1, 4)
    out, logits = jax.eval_shape(
        lambda k: create(SPEC | dict(pooler=False)).init_with_output(k, TOKENS)[0],
        jax.random.key(0),
    )
    assert out.pooled is None and logits == {}


def test_a_head_on_a_pooled_output_that_is_not_there_is_refused():
    for head in ("nsp", "classifier"):
        with pytest.raises(FirthError, match=f"head {head!r} needs a pooled.*set model.pooler"):
            create(SPEC | dict(pooler=False), ("mlm", head))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_heads=0), "hidden_size=4 is not a multiple of model.num_heads=0"),
        (dict(num_heads=3), "hidden_size=4 is not a multiple of model.num_heads=3"),
        *(
            (dict([(name, 0)]), f"model.{name}=0 should be at least 1")
            for name in ("vocab_size", "num_layers", "intermediate_size", "max_length")
        ),
        *(
            (dict([(name, rate)]), rf"model.{name}={rate} should lie in \[0, 1\)")
            for name in ("dropout", "attention_dropout", "classifier_dropout")
            for rate in (1.0, -0.1)
        ),
        (dict(activation="swish"), "model.activation='swish' is unknown; one of gelu, gelu_tanh"),
        (dict(remat="some"), "model.remat='some' is unknown; one of none, full, dots, all_dots"),
        (dict(dtype="int8"), "model.dtype='int8' is unknown; one of float32, bfloat16, float16"),
        (dict(depth=3), "model has no field depth; the fields are .*activation"),
        (dict(family="xlnet", hidden_size=6, max_length=None), "no field max_length"),
    ],
)
def test_what_no_model_can_have_is_refused(changes, message):
    with pytest.raises(FirthError, match=message):
        create(SPEC | changes)


def test_odd_widths_have_no_sines_and_no_rotation():
    spec = dict(family="xlnet", num_heads=1, hidden_size=5)
    with pytest.raises(FirthError, match="hidden_size=5 is odd; sines and cosines need"):
        create(spec)
    with pytest.raises(FirthError, match="num_heads=2 gives heads of an odd width"):
        create(dict(family="modernbert", num_heads=2, hidden_size=6))


def test_pooled_states_are_the_last_the_greatest_and_the_mean():
    """Of the real places of each row, with any numbers in the others."""
    rng = np.random.default_rng(0)
    h_BLD = rng.normal(size=(4, 5, 3)).astype(np.float32) - 2
    h_BLD[1, 3:] = 9
    sizes = (5, 3, 1, 0)
    mask = np.arange(5) < np.array(sizes)[:, None]
    pooled = np.asarray(concat_pooled(h_BLD, mask))
    for row, size in enumerate(sizes[:3]):
        real = h_BLD[row, :size].astype(np.float64)
        expected = np.concatenate([real[-1], real.max(0), real.mean(0)])
        np.testing.assert_allclose(pooled[row], expected, rtol=1e-6)
    assert not pooled[3].any()
    np.testing.assert_array_equal(concat_pooled(h_BLD[:1]), pooled[:1])


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_a_classifier_may_read_the_mean_of_the_real_tokens(family):
    """BERT's through its pooler, ELECTRA's by a hidden layer of its own."""
    sizes = dict(num_layers=1, hidden_size=8, num_heads=2, intermediate_size=8, max_length=6)
    spec = dict(family=family, vocab_size=9, classifier_pooling="mean", **sizes)
    model = create(spec, ("classifier",), 3)
    tokens, real = np.arange(12).reshape(2, 6) % 9, np.arange(6) < np.array([[6], [4]])
    params = initial(model, tokens, scale=0.5)
    out, logits = model.apply({"params": params}, tokens, None, real)
    last = np.asarray(out.last)
    mean = np.stack([last[0].mean(0), last[1, :4].mean(0)])
    head, body = params["classifier"], params["encoder"]
    layer = body["pooler"] if family == "bert" else head["hidden"]
    hidden = mean @ layer["kernel"] + layer["bias"]
    hidden = np.tanh(hidden) if family == "bert" else jax.nn.gelu(hidden, approximate=False)
    expected = hidden @ head["dense"]["kernel"] + head["dense"]["bias"]
    np.testing.assert_allclose(logits["classifier"], expected, atol=1e-5)
    with pytest.raises(FirthError, match="classifier_pooling='max'; expected cls or mean"):
        create(spec | {"classifier_pooling": "max"})
