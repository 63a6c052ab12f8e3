"""The original checkpoint of GPT: a miniature in the layout of openai/finetune-transformer-lm."""

import json
import pickle

import numpy as np
import pytest
from helpers.published.families import make_model

from firth.cli import main
from firth.errors import FirthError
from firth.weights.read import read_model

LAYERS, HIDDEN, TOKENS, POSITIONS = 3, 28, 83, 26


def write(folder, model):
    """Write a transformers model the way the original code stored its own; returns the arrays."""
    state = {k: v.numpy() for k, v in model.transformer.state_dict().items()}
    arrays = [state["positions_embed.weight"], state["tokens_embed.weight"]]
    for i in range(model.config.n_layer):
        for name in ("attn.c_attn", "attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2"):
            weight = state[f"h.{i}.{name}.weight"]
            arrays.append(weight[None] if weight.ndim == 2 else weight)  # a convolution, or a gain
            arrays.append(state[f"h.{i}.{name}.bias"])
    folder.mkdir()
    shapes = [list(array.shape) for array in arrays]
    (folder / "params_shapes.json").write_text(json.dumps(shapes))
    flat = np.concatenate([array.ravel() for array in arrays])
    for n, part in enumerate(np.array_split(flat, 10)):
        np.save(folder / f"params_{n}.npy", part)
    return arrays


@pytest.fixture
def made(tmp_path):
    """(folder with the original layout, the same model published)."""
    model = make_model(tmp_path / "published", "gpt", "gelu")
    arrays = write(tmp_path / "model", model)
    assert [a.shape for a in arrays[:2]] == [(POSITIONS, HIDDEN), (TOKENS, HIDDEN)]
    return tmp_path / "model", tmp_path / "published"


def test_every_tensor_is_read_as_it_was_written(made):
    found, expected = map(read_model, made)
    assert found.layout == "original" and found.heads == expected.heads == ("lm",)
    # The file says nothing of heads: they are 64 wide, as OpenAI's are.
    assert found.spec == expected.spec | {"num_heads": 1}
    assert found.spec["activation"] == "gelu_tanh"

    def leaves(tree, path=""):
        if not isinstance(tree, dict):
            return {path: tree}
        return {k: v for name in tree for k, v in leaves(tree[name], f"{path}/{name}").items()}

    ours, theirs = leaves(found.params), leaves(expected.params)
    assert ours.keys() == theirs.keys() and len(ours) == 2 + 12 * LAYERS
    for path, value in theirs.items():
        np.testing.assert_array_equal(ours[path], value, err_msg=path)


def test_heads_are_64_wide(tmp_path):
    write(
        tmp_path / "model",
        make_model(tmp_path / "m", "gpt", "gelu", n_embd=192, n_head=3, n_layer=1),
    )
    assert read_model(tmp_path / "model").spec["num_heads"] == 3


def test_convert_writes_what_transformers_loads(made, tmp_path, capsys):
    import transformers

    assert main(["convert", "--from", str(made[0]), "--to", str(tmp_path / "firth")]) == 0
    assert "OpenAIGPTLMHeadModel (gpt): 3 layers x 28, 1 heads" in capsys.readouterr().err
    back = ["convert", "--from", str(tmp_path / "firth"), "--to", str(tmp_path / "new")]
    assert main(back) == 0
    loader = transformers.AutoModelForCausalLM.from_pretrained
    model, report = loader(tmp_path / "new", output_loading_info=True)
    assert type(model).__name__ == "OpenAIGPTLMHeadModel"
    assert not report["missing_keys"] and not report["unexpected_keys"]


class Boom:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def pickled(folder):
    array = np.array([Boom()], object)
    np.save(folder / "params_3.npy", array, allow_pickle=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "params_0.npy").unlink(), r"params_0\.npy is missing; it came with"),
        (lambda f: (f / "params_9.npy").unlink(), r"hold \d+ numbers, but params_shapes.json asks"),
        (pickled, r"params_3\.npy is truncated or no \.npy file"),
        (
            lambda f: (f / "params_3.npy").write_bytes(pickle.dumps(Boom())),
            r"params_3\.npy is truncated or no \.npy file",
        ),
        (
            lambda f: (f / "params_3.npy").write_bytes((f / "params_3.npy").read_bytes()[:300]),
            r"params_3\.npy is truncated or no \.npy file",
        ),
        (
            lambda f: np.save(f / "params_3.npy", np.zeros((2, 2))),
            r"params_3\.npy holds float64 \[2, 2\], expected float32 \[n\]",
        ),
        (lambda f: (f / "params_shapes.json").write_text("{}"), "expected a JSON list, found dict"),
        (lambda f: (f / "params_shapes.json").write_text("[[1"), "json:1: not valid JSON"),
        (lambda f: (f / "params_shapes.json").write_text("[[1, -1]]"), "expected a list of shapes"),
        (lambda f: (f / "params_shapes.json").write_text("[[1, 2]]"), "lists 1 tensors; GPT has"),
        (
            lambda f: (f / "params_shapes.json").write_text(json.dumps([[1, 2]] * 15)),
            "lists 15 tensors; GPT has its positions and tokens, and 12 a layer",
        ),
        (
            lambda f: (f / "params_shapes.json").write_text(json.dumps([[2**30, 2**30]] * 14)),
            "numbers, but params_shapes.json asks for",
        ),
    ],
)
def test_damage_is_named(made, change, message):
    change(made[0])
    with pytest.raises(FirthError, match=message):
        read_model(made[0])
