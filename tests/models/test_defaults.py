"""Defaults and published sizes: those of transformers' configs, and of the papers elsewhere."""

import dataclasses
import json

import pytest

from firth.models.model import create, family
from firth.weights.config import read_config

CLASSES = {
    "bert": "BertConfig",
    "roberta": "RobertaConfig",
    "albert": "AlbertConfig",
    "distilbert": "DistilBertConfig",
    "electra": "ElectraConfig",
    "modernbert": "ModernBertConfig",
    "gpt": "OpenAIGPTConfig",
    "gpt2": "GPT2Config",
    "xlnet": "XLNetConfig",
}
# Where a class's defaults are not its published base: BERT's for RoBERTa, and the largest sizes.
BASE = dict(hidden_size=768, num_heads=12, intermediate_size=3072)
OTHERWISE = {
    "roberta": dict(max_length=512, type_vocab_size=1, norm_epsilon=1e-5),
    "albert": BASE,
    "xlnet": BASE | dict(num_layers=12),
}
HOW_IT_RUNS = {"scan", "remat", "dtype", "attention", "fused_attention"}
HOW_IT_RUNS |= {"matrix_dropout", "softmax_over_all"}


@pytest.mark.parametrize("name", CLASSES)
def test_defaults_are_those_of_transformers(name):
    import transformers

    theirs = getattr(transformers, CLASSES[name])().to_json_string(use_diff=False)
    expected = read_config(json.loads(theirs), name).spec | OTHERWISE.get(name, {})
    ours = family(name).Config()
    fields = {field.name for field in dataclasses.fields(ours)} - HOW_IT_RUNS
    assert fields <= set(expected)
    assert {field: getattr(ours, field) for field in fields} == {
        field: expected[field] for field in fields
    }


def test_transformer_xl_has_the_defaults_of_its_code():
    """pytorch/train.py of the release: ReLU, no dropout of attention's probabilities but where a
    script sets it, shared biases, no clamp; torch's LayerNorm."""
    config = family("transformer_xl").Config()
    assert (config.activation, config.norm_epsilon) == ("relu", 1e-5)
    assert (config.attention_dropout, config.untie_r, config.clamp_len) == (0.0, False, 0)
    assert config.same_length is False and config.init_stddev == 0.02


def test_a_classifier_drops_a_tenth_unless_it_is_told():
    spec = dict(family="bert", vocab_size=11, num_layers=1, hidden_size=4, num_heads=2)
    assert create(spec, ("classifier",)).classifier_dropout == 0.1
    assert create(spec | dict(classifier_dropout=0.3), ("classifier",)).classifier_dropout == 0.3


@pytest.mark.parametrize(
    ("name", "sizes"),
    [  # layers, width, heads, width of the MLP, width of the embeddings where it has one
        ("bert", dict(base=(12, 768, 12, 3072), large=(24, 1024, 16, 4096))),
        ("roberta", dict(base=(12, 768, 12, 3072), large=(24, 1024, 16, 4096))),
        (
            "albert",  # Lan et al. 2020, table 1, with the heads of the released configs
            dict(
                base=(12, 768, 12, 3072, 128),
                large=(24, 1024, 16, 4096, 128),
                xlarge=(24, 2048, 16, 8192, 128),
                xxlarge=(12, 4096, 64, 16384, 128),
            ),
        ),
        ("distilbert", dict(base=(6, 768, 12, 3072))),
        (
            "electra",  # Clark et al. 2020, table 6
            dict(
                small=(12, 256, 4, 1024, 128),
                base=(12, 768, 12, 3072, 768),
                large=(24, 1024, 16, 4096, 1024),
            ),
        ),
        ("modernbert", dict(base=(22, 768, 12, 1152), large=(28, 1024, 16, 2624))),
        ("xlnet", dict(base=(12, 768, 12, 3072), large=(24, 1024, 16, 4096))),
        (
            "transformer_xl",  # the scripts of the release
            dict(
                enwik8=(12, 512, 8, 2048),
                wt103=(16, 410, 10, 2100),
                wt103_large=(18, 1024, 16, 4096),
            ),
        ),
        ("gpt", dict(base=(12, 768, 12, 3072))),
        (
            "gpt2",
            dict(
                base=(12, 768, 12, 3072),
                medium=(24, 1024, 16, 4096),
                large=(36, 1280, 20, 5120),
                xl=(48, 1600, 25, 6400),
            ),
        ),
    ],
)
def test_published_sizes(name, sizes):
    order = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "embedding_size")
    for size, numbers in sizes.items():
        assert family(name).size(size) == dict(zip(order, numbers, strict=False))
