"""What parameters begin with: the distributions of the released code, leaf by leaf."""

import fnmatch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import jit

from firth.models.model import create, family
from firth.training.partition import leaf_path

STDDEV = 0.05  # not the default, so that it is seen to be used
SPEC = dict(
    vocab_size=90,
    num_layers=3,
    hidden_size=64,
    num_heads=2,
    intermediate_size=80,
    init_stddev=STDDEV,
)
HEADS = {
    "bert": ("mlm", "nsp"),
    "roberta": ("mlm",),
    "albert": ("mlm", "sop"),
    "distilbert": ("mlm",),
    "electra": ("mlm", "rtd", "copy"),
    "modernbert": ("mlm",),
    "xlnet": ("lm",),
    "transformer_xl": ("lm",),
    "gpt": ("lm",),
    "gpt2": ("lm",),
}
# TF1's truncated normal in the code of BERT, ALBERT and ELECTRA; a plain one elsewhere: fairseq's
# RoBERTa, XLNet, Transformer-XL, GPT, and DistilBERT in transformers. ModernBERT's is truncated.
TRUNCATED = ("bert", "albert", "electra", "modernbert")
GLOROT = {  # the layers without an initialiser in the released code get TF1's default
    "electra": ("encoder/project/kernel", "rtd/dense/kernel", "copy/kernel", "classifier/dense/*"),
    "xlnet": ("encoder/mask_embedding",),
}
NORMAL_BIASES = ("*/content_bias", "*/position_bias", "*/segment_bias")  # XLNet's, on the query
PADDED, PAD = ("encoder/word/embedding", "encoder/position/embedding"), 4  # fairseq's RoBERTa's
NARROW = ("*/attention/output/kernel", "*/mlp_out/kernel")  # GPT-2's, to the residual stream


def initial(name):
    """{path: initial array} of a family with all its heads."""
    spec = dict(family=name) | SPEC
    if name in ("albert", "electra"):
        spec["embedding_size"] = 40
    if name == "roberta":
        spec["pad_id"] = PAD
    model = create(spec, (*HEADS[name], "classifier"), 3)
    params = jit(model.init)(jax.random.key(1), jnp.zeros((1, 4), jnp.int32))["params"]
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return {leaf_path(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def assert_spread(values, stddev):
    """Mean 0 and this standard deviation, as far as so many values can tell."""
    few = 5 / np.sqrt(values.size)
    assert abs(values.mean()) < few * stddev
    assert abs(values.std() / stddev - 1) < few


def assert_uniform(values, limit):
    assert 0.9 * limit < abs(values).max() <= limit
    assert_spread(values, limit / np.sqrt(3))


def assert_normal(values, stddev, truncated):
    """Truncated at two deviations and not rescaled, or with what lies beyond."""
    if truncated:
        assert abs(values).max() <= 2 * stddev
        assert_spread(values, 0.8796 * stddev)
    else:
        assert_spread(values, stddev)
        beyond = (abs(values) > 2 * stddev).mean()
        assert abs(beyond - 0.0455) < 5 * np.sqrt(0.0455 / values.size)


@pytest.mark.parametrize("name", HEADS)
def test_every_parameter_begins_as_in_the_released_code(name):
    found, together = initial(name), []
    for path, values in found.items():
        if matches(path, GLOROT.get(name, ())) and not path.endswith("bias"):
            fans = values.shape[-2:]
            assert_uniform(values, np.sqrt(6 / sum(fans)))
        elif path.endswith("scale"):
            assert (values == 1).all()
        elif path.endswith("bias") and not matches(path, NORMAL_BIASES):
            assert (values == 0).all()
        else:
            scale = (2 * SPEC["num_layers"]) ** -0.5 if name == "gpt2" else 1
            stddev = STDDEV * (scale if matches(path, NARROW) else 1)
            if name == "roberta" and matches(path, PADDED):
                assert (values[PAD] == 0).all()
                values = np.delete(values, PAD, axis=0)
            assert_normal(values, stddev, name in TRUNCATED)
            together.append(values.ravel() / stddev)
    together = np.concatenate(together)
    assert_normal(together, 1.0, name in TRUNCATED)  # many more values, so a sharper test
    assert family(name).Config().init_stddev == 0.02
