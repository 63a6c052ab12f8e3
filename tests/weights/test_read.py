"""Reading models: workdirs, damaged and unsafe files, tokenizers and the hub."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from helpers.exchange import contents
from helpers.published.bert import add_tokenizer, make_bert

from firth.commands import convert
from firth.errors import FirthError
from firth.models.model import to_layout
from firth.training.checkpoint import Checkpoints
from firth.training.state import TrainState
from firth.weights.read import read_model
from firth.weights.write import write_firth


def make_workdir(path, saved, scan, params_of_step):
    """A workdir as `firth train` leaves it, with Adam's moments in the checkpoints."""
    path.mkdir()
    described = {
        "firth": 1,
        "model": saved.spec | {"scan": scan, "remat": "none", "dtype": "float32"},
        "heads": list(saved.heads),
        "num_labels": saved.num_labels,
        "labels": None,
        "regression": False,
        "best": "dev/accuracy",
    }
    (path / "model.json").write_text(json.dumps(described))
    (path / "config.json").write_text(json.dumps({"checkpoint": {"keep": 3, "best": "task"}}))
    saves = Checkpoints(path, keep=3, best="dev/accuracy")
    for step, (params, accuracy) in params_of_step.items():
        state = TrainState.create(jax.device_put(to_layout(params, scan)), optax.adam(1e-3))
        saves.save(step, state.replace(step=jnp.int32(step)), {}, {"dev/accuracy": accuracy})
    saves.close()


@pytest.mark.parametrize("scan", [False, True])
def test_a_workdir_gives_the_parameters_of_a_checkpoint(tmp_path, scan):
    make_bert(tmp_path / "m", "BertForPreTraining")
    saved = read_model(tmp_path / "m")
    make_workdir(tmp_path / "run", saved, scan, {3: (saved.params, 0.5)})
    add_tokenizer_to = tmp_path / "run" / "tokenizer"
    add_tokenizer_to.mkdir()
    add_tokenizer(add_tokenizer_to)
    run = read_model(tmp_path / "run")
    assert (run.layout, run.spec, run.heads) == ("workdir", saved.spec, saved.heads)
    expected, found = flatten_dict(saved.params), flatten_dict(run.params)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[k], expected[k]) for k in expected)
    # Converted back, the weights' file is the original one.
    assert convert.main(["--from", str(tmp_path / "run"), "--to", str(tmp_path / "out")]) == 0
    for name in ("model.safetensors",):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    assert (tmp_path / "out" / "vocab.txt").exists()


def test_a_workdir_gives_its_best_checkpoint_and_is_left_alone(tmp_path):
    make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    worse = jax.tree.map(lambda x: x + 1, saved.params)
    steps = {2: (worse, 0.3), 4: (saved.params, 0.9), 6: (worse, 0.5)}
    make_workdir(tmp_path / "run", saved, False, steps)
    unfinished = tmp_path / "run" / "checkpoints" / "8.orbax-checkpoint-tmp"
    unfinished.mkdir()
    (unfinished / "shard").write_text("a run beside us is writing this")
    before = contents(tmp_path / "run")
    found = flatten_dict(read_model(tmp_path / "run").params)
    expected = flatten_dict(saved.params)
    assert all(np.array_equal(found[k], expected[k]) for k in expected)
    assert contents(tmp_path / "run") == before


def test_a_workdir_without_a_checkpoint_is_refused(tmp_path):
    make_bert(tmp_path / "m")
    make_workdir(tmp_path / "run", read_model(tmp_path / "m"), False, {})
    with pytest.raises(FirthError, match="no checkpoint"):
        read_model(tmp_path / "run")


def damaged_copies(whole: bytes):
    header = int.from_bytes(whole[:8], "little")
    yield "truncated", whole[:-4]
    yield "cut in the header", whole[: header // 2]
    yield "empty", b""
    yield "longer", whole + b"\0\0\0\0"
    yield "huge header", b"\xff" * 8 + whole[8:]
    yield "bits flipped in the header", whole[:30] + bytes([whole[30] ^ 0x80]) + whole[31:]
    yield "shape", whole.replace(b'"shape":[', b'"shape":[9', 1)
    yield "a pickle", b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x02os\x94\x8c\x06system\x94\x93\x94."


def test_damaged_safetensors_are_named(tmp_path):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    for directory, name in (("m", "model.safetensors"), ("f", "params.safetensors")):
        file = tmp_path / directory / name
        whole = file.read_bytes()
        for kind, damaged in damaged_copies(whole):
            file.write_bytes(damaged)
            with pytest.raises(FirthError, match=name):
                read_model(tmp_path / directory)
                pytest.fail(kind)
        file.write_bytes(whole)
        read_model(tmp_path / directory)


def test_every_flipped_bit_of_a_firth_directory_is_noticed(tmp_path):
    make_bert(tmp_path / "m", shape="relu")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "params.safetensors"
    whole = bytearray(file.read_bytes())
    for position in np.linspace(0, len(whole) - 1, 40).astype(int):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(FirthError, match=r"params\.safetensors does not match the sha256"):
            read_model(tmp_path / "f")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"])
def test_pickles_and_their_like_are_never_loaded(tmp_path, name):
    make_bert(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / name)
    with pytest.raises(FirthError, match=f"{name}: a pickle, or .* never loaded; save them as"):
        read_model(tmp_path / "m")


def test_shards_outside_the_directory_are_refused(tmp_path):
    make_bert(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = tmp_path / "m" / "model.safetensors.index.json"
    for weight_map in ({"a": "../elsewhere.safetensors"}, {"a": "gone.safetensors"}, {"a": 3}, []):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(FirthError, match=r"index\.json"):
            read_model(tmp_path / "m")


def test_a_vocabulary_that_is_too_large_is_refused(tmp_path):
    make_bert(tmp_path / "m", shape="relu")  # 50 tokens in the model
    add_tokenizer(tmp_path / "m")  # and 72 in the vocabulary
    with pytest.raises(FirthError, match=r"tokenizer has 72 tokens, but the model .* has 50"):
        read_model(tmp_path / "m").tokenizer()


def test_the_hub_gives_data_files_only(tmp_path, monkeypatch):
    import huggingface_hub

    make_bert(tmp_path / "m")
    asked = {}

    def fake(repository, **options):
        asked.update(options, repository=repository)
        return str(tmp_path / "m")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    assert read_model("hf:org/name@v2").heads == ()
    assert asked["repository"] == "org/name" and asked["revision"] == "v2"
    names = ["model.safetensors", "config.json", "vocab.txt", "spiece.model", "tokenizer.json"]
    pickles = ["pytorch_model.bin", "tf_model.h5", "rust_model.ot", "onnx/model.json", "x.py"]
    kept = list(
        huggingface_hub.utils.filter_repo_objects(
            names + pickles,
            allow_patterns=asked["allow_patterns"],
            ignore_patterns=asked["ignore_patterns"],
        )
    )
    assert kept == names


def test_a_failed_download_is_one_line(monkeypatch):
    import huggingface_hub

    def fake(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    with pytest.raises(FirthError, match=r"hf:org/name cannot be downloaded: no route$"):
        read_model("hf:org/name")
