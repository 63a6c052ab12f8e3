"""Small models of the families but BERT and XLNet, with random weights and odd dimensions."""

from helpers.published import save_random

_BERT_LIKE = dict(
    vocab_size=83,
    hidden_size=28,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=44,
    max_position_embeddings=26,
    layer_norm_eps=1e-5,
)
POSITIONS = 90  # of a model made by `make_generator`
# family -> {shape: settings of its config}
SHAPES = {
    "roberta": {
        "gelu": _BERT_LIKE | dict(type_vocab_size=1, pad_token_id=1),
        "pad_4": _BERT_LIKE | dict(type_vocab_size=1, pad_token_id=4, hidden_act="gelu_new"),
    },
    "albert": {
        "shared": _BERT_LIKE | dict(embedding_size=12),
        "groups": _BERT_LIKE
        | dict(embedding_size=28, num_hidden_layers=5, num_hidden_groups=2, hidden_act="gelu"),
        "inner": _BERT_LIKE | dict(embedding_size=20, num_hidden_groups=3, inner_group_num=2),
    },
    "distilbert": {
        "gelu": dict(
            vocab_size=83, dim=28, n_layers=2, n_heads=4, hidden_dim=44, max_position_embeddings=26
        ),
        "relu": dict(
            vocab_size=61,
            dim=30,
            n_layers=4,
            n_heads=5,
            hidden_dim=52,
            max_position_embeddings=17,
            activation="relu",
        ),
    },
    "electra": {
        "projected": _BERT_LIKE | dict(embedding_size=12),
        "equal": _BERT_LIKE | dict(embedding_size=28, hidden_act="gelu_new", type_vocab_size=3),
    },
}
SHAPES["modernbert"] = {
    "local": dict(
        vocab_size=83,
        hidden_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
        intermediate_size=44,
        max_position_embeddings=26,
        local_attention=6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "pairs": dict(
        vocab_size=61,
        hidden_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=40,
        local_attention=4,
        layer_types=["full_attention", "sliding_attention"] * 2,
        hidden_activation="gelu_pytorch_tanh",
        norm_eps=1e-3,
        classifier_pooling="mean",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
}
_GPT = dict(
    vocab_size=83,
    n_embd=28,
    n_layer=3,
    n_head=4,
    n_positions=26,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
SHAPES["gpt"] = {
    "gelu": _GPT,
    "relu": _GPT
    | dict(n_embd=30, n_head=1, n_layer=2, afn="relu", layer_norm_epsilon=1e-3, n_positions=11),
}
SHAPES["gpt2"] = {
    "tanh": _GPT,
    "inner": _GPT
    | dict(n_embd=30, n_head=5, n_layer=4, n_inner=44, activation_function="relu", vocab_size=61),
    "erf": _GPT
    | dict(n_embd=24, n_head=1, activation_function="gelu", layer_norm_epsilon=1e-3, n_layer=1),
}
CASES = [(family, shape) for family, shapes in SHAPES.items() for shape in shapes]
# family -> classes whose directories are exchanged; the one for pretraining first
CLASSES = {
    "roberta": ("RobertaForMaskedLM", "RobertaModel", "RobertaForSequenceClassification"),
    "albert": (
        "AlbertForPreTraining",
        "AlbertForMaskedLM",
        "AlbertModel",
        "AlbertForSequenceClassification",
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertModel",
        "DistilBertForSequenceClassification",
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertModel",
        "ModernBertForSequenceClassification",
    ),
    "gpt": ("OpenAIGPTLMHeadModel", "OpenAIGPTModel", "OpenAIGPTForSequenceClassification"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"),
    "electra": (
        "ElectraForPreTraining",
        "ElectraForMaskedLM",
        "ElectraModel",
        "ElectraForSequenceClassification",
    ),
}


def make_model(directory, family, shape, name=None, seed=0, **settings):
    """Save a transformers model with all parameters random; returns the torch model, in eval."""
    import torch
    import transformers

    name = name or CLASSES[family][0]
    settings = SHAPES[family][shape] | dict(attn_implementation="eager") | settings
    torch.manual_seed(seed)
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**settings)).eval()
    return save_random(model, directory, 0.2)


def make_generator(directory, tokenizer, family="gpt2", shape="tanh", rows=9):
    """Save a model of 90 positions with this tokenizer, and `rows` more rows than it has tokens."""
    settings = dict(vocab_size=tokenizer.vocab_size + rows, n_positions=POSITIONS, n_layer=2)
    model = make_model(directory, family, shape, eos_token_id=None, bos_token_id=None, **settings)
    tokenizer.save(directory)
    return model
