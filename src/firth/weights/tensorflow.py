"""Read the original TensorFlow checkpoints of BERT, ALBERT, ELECTRA and XLNet.

The original code names a variable by its scopes. The tables here turn such a name into the
published (Hugging Face) name of the same tensor, which `firth.weights.names` reads. Optimiser slots
and the step are skipped.
"""

import re
from pathlib import Path

import numpy as np

from firth.errors import FirthError
from firth.storage.local import read_json
from firth.weights.tensorflow_files import read_checkpoint

IGNORED = r"(adam_m|adam_v|lamb_m|lamb_v|global_step)($|/)|^(beta[12]_power)$"
# (regular expression, replacement), applied one after the other.
COMMON = (
    (r"/", "."),
    (r"layer_(\d+)\.", r"layer.\1."),
    (r"\.(kernel|gamma)$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"_embeddings$", "_embeddings.weight"),
    (r"\.output_weights$", ".weight"),
    (r"\.output_bias$", ".bias"),
    (r"^output_weights$", "classifier.weight"),
    (r"^output_bias$", "classifier.bias"),
)
PER_LAYER = ("r_w_bias", "r_r_bias", "r_s_bias", "seg_embed")  # XLNet: one array for all layers
# Further rules of each family, applied after COMMON.
FAMILIES = {
    "bert": (),
    "albert": (
        (r"^bert\.", "albert."),
        (r"encoder\.transformer\.group_(\d+)\.inner_group_(\d+)\.",
         r"encoder.albert_layer_groups.\1.albert_layers.\2."),
        (r"attention_1\.self\.", "attention."),
        (r"attention_1\.output\.dense\.", "attention.dense."),
        (r"(albert_layers\.\d+)\.LayerNorm\.", r"\1.attention.LayerNorm."),
        (r"LayerNorm_1\.", "full_layer_layer_norm."),
        (r"ffn_1\.intermediate\.dense\.", "ffn."),
        (r"ffn_1\.intermediate\.output\.dense\.", "ffn_output."),
        (r"pooler\.dense\.", "pooler."),
        (r"^cls\.predictions\.transform\.", "predictions."),
        (r"^cls\.predictions\.", "predictions."),
        (r"^cls\.seq_relationship\.", "sop_classifier.classifier."),
    ),
    "xlnet": (
        (r"^model\.", ""),
        (r"\.lookup_table$", ".weight"),
        (r"mask_emb\.mask_emb$", "mask_emb"),
        (r"(rel_attn\.[qkvor])\.weight$", r"\1"),
        (r"\.LayerNorm\.", ".layer_norm."),
        (r"ff\.layer\.(\d)\.", r"ff.layer_\1."),
        (r"^sequnece_summary\.", "sequence_summary."),
        (r"^classification_[^.]*\.logit\.", "logits_proj."),
    ),
    "electra": (
        (r"^discriminator_predictions\.dense_1\.", "discriminator_predictions.dense_prediction."),
    ),
}  # fmt: skip
# Last rules for the generator of an ELECTRA checkpoint. It shares the discriminator's embeddings;
# the first rule drops the rest of the discriminator by giving it an empty name.
GENERATOR = (
    (r"^(electra\.(encoder|embeddings_project)|discriminator_predictions)\b.*", ""),
    (r"^generator\.", "electra."),
    (r"^generator_predictions\.bias$", "generator_lm_head.bias"),
)
CONFIGS = {
    "bert_config.json": "bert",
    "albert_config.json": "albert",
    "xlnet_config.json": "xlnet",
}


def find_checkpoint(path: Path) -> Path | None:
    """The prefix of the newest TensorFlow checkpoint in a folder, or None."""
    found = sorted(path.glob("*.index"), key=lambda file: file.stat().st_mtime)
    return found[-1].with_suffix("") if found else None


def read_original(path: Path, part: str = "model") -> tuple[dict, dict]:
    """(config.json, {published name: array}) of a folder with a TensorFlow checkpoint.

    `part` "generator" reads the generator of an ELECTRA checkpoint instead of its discriminator.

    Raises FirthError if files are missing, damaged or of another family.
    """
    prefix = find_checkpoint(path)
    variables = {
        name: tensor
        for name, tensor in read_checkpoint(prefix).items()
        if not re.search(IGNORED, name)
    }
    family = _family(path, variables, prefix)
    if family == "xlnet":
        variables = _by_layer(variables)
    rules = COMMON + FAMILIES[family]
    if family == "electra" and part == "generator":
        rules += GENERATOR
    tensors = {}
    for name, tensor in variables.items():
        published = name
        for pattern, replacement in rules:
            published = re.sub(pattern, replacement, published)
        if published and (family != "electra" or part == "generator" or _of_model(name)):
            transposed = name.endswith("/kernel") and tensor.ndim == 2
            tensors[published] = tensor.T if transposed else tensor
    return _config(path, family, tensors), tensors


def _by_layer(variables: dict) -> dict:
    """XLNet's variables, with those of PER_LAYER split into (or copied to) one for each layer."""
    split = {}
    layers = len({m[0] for name in variables if (m := re.search(r"/layer_\d+/", name))})
    for name, tensor in variables.items():
        scope, _, last = name.rpartition("/")
        if last not in PER_LAYER:
            split[name] = tensor
            continue
        shared = tensor.ndim == (3 if last == "seg_embed" else 2)  # untie_r=False
        for i in range(layers if shared else len(tensor)):
            split[f"{scope}/layer_{i}/rel_attn/{last}"] = tensor if shared else tensor[i]
    return split


def _of_model(name: str) -> bool:
    """Whether a variable of ELECTRA is not the generator's."""
    return not name.startswith(("generator/", "generator_predictions/"))


def _family(path: Path, variables: dict, prefix: Path) -> str:
    """The family that the folder's config or the names of the variables tell."""
    for file, family in CONFIGS.items():
        if (path / file).is_file():
            return family
    roots = {name.split("/")[0] for name in variables}
    if any(name.startswith("model/transformer/") for name in variables):
        raise FirthError(f"{path}: xlnet_config.json is missing; it came with {prefix.name}")
    if "electra" in roots:
        return "electra"
    if "bert" in roots:
        inside = any("/inner_group_" in name for name in variables)
        missing = "albert_config.json" if inside else "bert_config.json"
        raise FirthError(f"{path}: {missing} is missing; it came with {prefix.name}")
    raise FirthError(
        f"{prefix}.index holds no BERT, ALBERT, ELECTRA or XLNet: its variables begin with "
        f"{', '.join(sorted(roots)[:5])}"
    )


def _config(path: Path, family: str, tensors: dict[str, np.ndarray]) -> dict:
    """The config.json of the checkpoint. ELECTRA's is inferred from the shapes: it has no file."""
    if family == "xlnet":
        config = read_json(path / "xlnet_config.json")
        activation = {"gelu": "gelu_new"}.get(config.get("ff_activation"), "relu")
        config |= dict(vocab_size=config.get("n_token"), untie_r=True, ff_activation=activation)
        if "logits_proj.bias" in tensors:
            config["num_labels"] = len(tensors["logits_proj.bias"])
        return config | dict(model_type="xlnet", layer_norm_eps=1e-12)
    if family != "electra":
        file = next(file for file, known in CONFIGS.items() if known == family)
        # Both systems call their activation gelu and compute its tanh approximation.
        config = read_json(path / file) | {"model_type": family, "hidden_act": "gelu_new"}
        return {key: value for key, value in config.items() if key not in ("pooler_fc_size",)}

    def shape(name):
        tensor = tensors.get(f"electra.{name}")
        if tensor is None:
            raise FirthError(f"{path}: the checkpoint lacks electra/{name.replace('.', '/')}")
        return tensor.shape

    hidden = shape("encoder.layer.0.attention.self.query.bias")[0]
    layers = {
        m[1] for m in (re.match(r"electra\.encoder\.layer\.(\d+)\.", n) for n in tensors) if m
    }
    vocabulary, embedding = shape("embeddings.word_embeddings.weight")
    return dict(
        model_type="electra",
        hidden_act="gelu",
        vocab_size=vocabulary,
        embedding_size=embedding,
        hidden_size=hidden,
        num_hidden_layers=len(layers),
        num_attention_heads=max(hidden // 64, 1),
        intermediate_size=shape("encoder.layer.0.intermediate.dense.bias")[0],
        max_position_embeddings=shape("embeddings.position_embeddings.weight")[0],
        type_vocab_size=shape("embeddings.token_type_embeddings.weight")[0],
    )
