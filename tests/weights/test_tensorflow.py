"""TensorFlow checkpoints of the original code.

`original/` holds small ones that TensorFlow 2's Saver wrote, with variables named and shaped as
google-research's bert, albert and electra have them, and the values of all variables as an .npz.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from firth.cli import main
from firth.errors import FirthError
from firth.weights import tensorflow
from firth.weights.read import read_model
from firth.weights.tensorflow import find_checkpoint
from firth.weights.tensorflow_files import read_checkpoint

HERE = Path(__file__).parent / "original"
LAYERS = {  # ours -> that of BERT and ELECTRA
    "attention/query": "attention/self/query",
    "attention/key": "attention/self/key",
    "attention/value": "attention/self/value",
    "attention/output": "attention/output/dense",
    "attention_norm": "attention/output/LayerNorm",
    "mlp_in": "intermediate/dense",
    "mlp_out": "output/dense",
    "mlp_norm": "output/LayerNorm",
}
SHARED = {  # of ALBERT
    "attention/query": "attention_1/self/query",
    "attention/key": "attention_1/self/key",
    "attention/value": "attention_1/self/value",
    "attention/output": "attention_1/output/dense",
    "attention_norm": "LayerNorm",
    "mlp_in": "ffn_1/intermediate/dense",
    "mlp_out": "ffn_1/intermediate/output/dense",
    "mlp_norm": "LayerNorm_1",
}
LEAVES = {"kernel": "kernel", "bias": "bias", "scale": "gamma"}


def variables(name):
    return {k.replace("|", "/"): v for k, v in np.load(HERE / name / "variables.npz").items()}


def expected(path, root, groups):
    """The original variable that the parameter at `path` should be."""
    module, leaf = path.rsplit("/", 1)
    theirs = LEAVES.get(leaf, leaf)
    embeddings = {
        "encoder/word": "word_embeddings",
        "encoder/position": "position_embeddings",
        "encoder/type": "token_type_embeddings",
    }
    if module in embeddings:
        return f"{root['embeddings']}/embeddings/{embeddings[module]}"
    if module == "encoder/norm":
        suffix = "beta" if leaf == "bias" else "gamma"
        return f"{root['embeddings']}/embeddings/LayerNorm/{suffix}"
    for prefix, (scope, layers) in groups.items():
        if module.startswith(prefix + "/"):
            inside = layers[module.removeprefix(prefix + "/")]
            if "LayerNorm" in inside:
                theirs = "beta" if leaf == "bias" else "gamma"
            return f"{scope}/{inside}/{theirs}"
    scope = root[module]
    if scope.endswith("LayerNorm"):
        theirs = "beta" if leaf == "bias" else "gamma"
    if scope.endswith("seq_relationship"):
        theirs = {"kernel": "output_weights", "bias": "output_bias"}[leaf]
    if module == "mlm":
        theirs = "output_bias"
    return f"{scope}/{theirs}"


PREDICTIONS = {
    "mlm": "cls/predictions",
    "mlm/dense": "cls/predictions/transform/dense",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
    "encoder/pooler": "bert/pooler/dense",
    "embeddings": "bert",
}
CASES = {
    ("bert", "model"): (
        ("mlm", "nsp"),
        PREDICTIONS | {"nsp/dense": "cls/seq_relationship"},
        {f"encoder/stack/layer_{i}": (f"bert/encoder/layer_{i}", LAYERS) for i in range(2)},
    ),
    ("albert", "model"): (
        ("mlm", "sop"),
        PREDICTIONS
        | {
            "sop/dense": "cls/seq_relationship",
            "encoder/project": "bert/encoder/embedding_hidden_mapping_in",
        },
        {
            "encoder/stack/group_0/inner_0": (
                "bert/encoder/transformer/group_0/inner_group_0",
                SHARED,
            )
        },
    ),
    ("electra", "model"): (
        ("rtd",),
        {
            "embeddings": "electra",
            "encoder/project": "electra/embeddings_project",
            "rtd/hidden": "discriminator_predictions/dense",
            "rtd/dense": "discriminator_predictions/dense_1",
        },
        {f"encoder/stack/layer_{i}": (f"electra/encoder/layer_{i}", LAYERS) for i in range(2)},
    ),
    ("electra", "generator"): (
        ("mlm",),
        {
            "embeddings": "electra",
            "encoder/project": "generator/embeddings_project",
            "mlm": "generator_predictions",
            "mlm/dense": "generator_predictions/dense",
            "mlm/norm": "generator_predictions/LayerNorm",
        },
        {f"encoder/stack/layer_{i}": (f"generator/encoder/layer_{i}", LAYERS) for i in range(2)},
    ),
}


@pytest.mark.parametrize("name", ["bert", "albert", "electra", "xlnet"])
def test_every_tensor_is_read_as_tensorflow_wrote_it(name):
    found, known = read_checkpoint(find_checkpoint(HERE / name)), variables(name)
    assert found.keys() - known.keys() == {"global_step"} and int(found["global_step"]) == 7
    for key, value in known.items():
        np.testing.assert_array_equal(found[key], value)


@pytest.mark.parametrize(("name", "part"), CASES)
def test_every_parameter_is_the_right_variable(name, part, caplog):
    heads, root, groups = CASES[name, part]
    with caplog.at_level("WARNING", "firth"):
        saved = read_model(HERE / name, part)
    assert "no place for" not in caplog.text  # nor is it said of the optimiser's moments
    assert saved.heads == heads and saved.layout == "original"
    known, used = variables(name), set()
    for path, value in flatten_dict(saved.params, sep="/").items():
        source = expected(path, root, groups)
        theirs = known[source]
        # The pair head's weights alone are published the other way round.
        np.testing.assert_array_equal(
            value, theirs.T if source.endswith("output_weights") else theirs
        )
        used.add(source)
    if part == "model":
        left = {key for key in known if key not in used and not key.endswith("adam_m")}
        assert all(key.startswith("generator") for key in left)


RELATIVE = {  # ours -> XLNet's
    "attention/query": "rel_attn/q/kernel",
    "attention/key": "rel_attn/k/kernel",
    "attention/value": "rel_attn/v/kernel",
    "attention/output": "rel_attn/o/kernel",
    "attention/relative": "rel_attn/r/kernel",
    "attention_norm/scale": "rel_attn/LayerNorm/gamma",
    "attention_norm/bias": "rel_attn/LayerNorm/beta",
    "mlp_in/kernel": "ff/layer_1/kernel",
    "mlp_in/bias": "ff/layer_1/bias",
    "mlp_out/kernel": "ff/layer_2/kernel",
    "mlp_out/bias": "ff/layer_2/bias",
    "mlp_norm/scale": "ff/LayerNorm/gamma",
    "mlp_norm/bias": "ff/LayerNorm/beta",
}
PER_LAYER = {
    "attention/content_bias": "r_w_bias",
    "attention/position_bias": "r_r_bias",
    "attention/segment_bias": "r_s_bias",
    "attention/segment_embedding": "seg_embed",
}


def test_every_parameter_of_xlnet_is_the_right_variable():
    """Its stacked biases are cut into layers; kernels of three axes stay as they are."""
    saved, known = read_model(HERE / "xlnet"), variables("xlnet")
    assert saved.heads == ("lm", "classifier") and saved.num_labels == 3
    assert saved.spec["activation"] == "gelu_tanh" and saved.spec["num_heads"] == 2
    sources = {
        "encoder/word/embedding": "model/transformer/word_embedding/lookup_table",
        "encoder/mask_embedding": "model/transformer/mask_emb/mask_emb",
        "lm/bias": "model/lm_loss/bias",
        "classifier/hidden/kernel": "model/sequnece_summary/summary/kernel",
        "classifier/hidden/bias": "model/sequnece_summary/summary/bias",
        "classifier/dense/kernel": "model/classification_sts-b/logit/kernel",
        "classifier/dense/bias": "model/classification_sts-b/logit/bias",
    }
    flat = flatten_dict(saved.params, sep="/")
    for path, value in flat.items():
        if path in sources:
            np.testing.assert_array_equal(value, known[sources[path]])
            continue
        layer, inside = path.removeprefix("encoder/stack/layer_").split("/", 1)
        if inside in PER_LAYER:
            theirs = known[f"model/transformer/{PER_LAYER[inside]}"][int(layer)]
        else:
            theirs = known[f"model/transformer/layer_{layer}/{RELATIVE[inside]}"]
        np.testing.assert_array_equal(value, theirs)
    assert len(flat) == len(sources) + 2 * (len(RELATIVE) + len(PER_LAYER))


def test_xlnet_goes_out_to_transformers(tmp_path):
    import transformers

    for a, b in ((HERE / "xlnet", "firth"), (tmp_path / "firth", "published")):
        assert main(["convert", "--from", str(a), "--to", str(tmp_path / b)]) == 0
    loader = transformers.XLNetForSequenceClassification.from_pretrained
    _, report = loader(tmp_path / "published", output_loading_info=True)
    assert not report["missing_keys"]


def test_the_newest_checkpoint_is_found(tmp_path):
    for age, name in enumerate(("model.ckpt-200", "model.ckpt-9", "model.ckpt-100")):
        (tmp_path / f"{name}.index").touch()
        os.utime(tmp_path / f"{name}.index", (1e9 - age, 1e9 - age))
    assert find_checkpoint(tmp_path) == tmp_path / "model.ckpt-200"
    os.utime(tmp_path / "model.ckpt-9.index", (2e9, 2e9))
    assert find_checkpoint(tmp_path) == tmp_path / "model.ckpt-9"
    assert find_checkpoint(tmp_path / "nowhere") is None


def test_electras_sizes_are_those_of_its_tensors(tmp_path, monkeypatch):
    """It has no config: heads are 64 wide, and the numbers of layers and rows can be counted."""
    sizes = {
        "embeddings/word_embeddings": (83, 24),
        "embeddings/position_embeddings": (40, 24),
        "embeddings/token_type_embeddings": (2, 24),
    }
    for i in range(3):
        sizes[f"encoder/layer_{i}/attention/self/query/bias"] = (192,)
        sizes[f"encoder/layer_{i}/intermediate/dense/bias"] = (80,)
    variables = {f"electra/{name}": np.zeros(shape, np.float32) for name, shape in sizes.items()}
    monkeypatch.setattr(tensorflow, "read_checkpoint", lambda prefix: variables)
    (tmp_path / "model.ckpt.index").touch()
    config, _ = tensorflow.read_original(tmp_path)
    assert config["num_attention_heads"] == 3 and config["num_hidden_layers"] == 3
    assert (config["hidden_size"], config["embedding_size"]) == (192, 24)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (83, 40)
    assert (config["intermediate_size"], config["type_vocab_size"]) == (80, 2)


@pytest.mark.parametrize("name", ["bert", "albert", "electra", "xlnet"])
def test_the_original_norms_add_1e_12(name):
    assert read_model(HERE / name).spec["norm_epsilon"] == 1e-12


def test_the_original_activations():
    assert read_model(HERE / "bert").spec["activation"] == "gelu_tanh"
    assert read_model(HERE / "albert").spec["activation"] == "gelu_tanh"
    assert read_model(HERE / "electra").spec["activation"] == "gelu"


@pytest.mark.parametrize("name", ["bert", "albert", "electra"])
def test_convert_says_what_it_recognised_and_transformers_loads_it(name, tmp_path, capsys):
    import transformers

    assert main(["convert", "--from", str(HERE / name), "--to", str(tmp_path / "firth")]) == 0
    assert f"({name})" in capsys.readouterr().err
    back = ["convert", "--from", str(tmp_path / "firth"), "--to", str(tmp_path / "published")]
    assert main(back) == 0
    loader = transformers.AutoModelForPreTraining.from_pretrained
    _, report = loader(tmp_path / "published", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]


def test_the_newest_checkpoint_is_read(tmp_path):
    for number, name in enumerate(("model.ckpt-20", "model.ckpt-3", "model.ckpt-1")):
        (tmp_path / f"{name}.index").touch()
        os.utime(tmp_path / f"{name}.index", (number % 2, number % 2))
    assert find_checkpoint(tmp_path) == tmp_path / "model.ckpt-3"
    assert find_checkpoint(tmp_path / "none") is None


def test_electras_heads_are_64_wide():
    """Its checkpoints say it nowhere; so are those of all sizes that were published."""
    shapes = {
        "encoder.layer.0.attention.self.query.bias": (256,),
        "encoder.layer.0.intermediate.dense.bias": (1024,),
        "embeddings.word_embeddings.weight": (90, 128),
        "embeddings.position_embeddings.weight": (512, 128),
        "embeddings.token_type_embeddings.weight": (2, 128),
    }
    tensors = {f"electra.{name}": np.empty(shape) for name, shape in shapes.items()}
    config = tensorflow._config(HERE, "electra", tensors)
    assert (config["num_attention_heads"], config["num_hidden_layers"]) == (4, 1)
    assert (config["hidden_size"], config["embedding_size"], config["vocab_size"]) == (256, 128, 90)


def damaged(tmp_path, change):
    folder = tmp_path / "m"
    shutil.copytree(HERE / "bert", folder)
    change(folder)
    return folder


def cut(file, size):
    file.write_bytes(file.read_bytes()[:size])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: cut(f / "bert_model.ckpt.index", 300), "truncated or no TensorFlow checkpoint"),
        (lambda f: cut(f / "bert_model.ckpt.index", 0), "truncated or no TensorFlow checkpoint"),
        (
            lambda f: cut(f / "bert_model.ckpt.data-00000-of-00001", 900),
            "data-00000-of-00001 is truncated: .* lies beyond its end",
        ),
        (
            lambda f: (f / "bert_model.ckpt.data-00000-of-00001").unlink(),
            "names bert_model.ckpt.data-00000-of-00001, which is not there",
        ),
        (lambda f: (f / "bert_config.json").unlink(), "bert_config.json is missing"),
    ],
)
def test_damage_is_named(tmp_path, change, message):
    with pytest.raises(FirthError, match=message):
        read_model(damaged(tmp_path, change))
