"""Weight exchange: byte-identical round trips, loading in transformers, refusal of bad input."""

import dataclasses
import errno
import json
import logging
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict
from helpers.published.bert import CLASSES, add_tokenizer, make_bert, minilm

from firth import cli
from firth.commands import convert
from firth.errors import FirthError
from firth.models.model import to_layout
from firth.training.checkpoint import Checkpoints
from firth.training.state import TrainState
from firth.weights.read import read_model
from firth.weights.write import new_directory, write_firth, write_published


def round_trip(source, folder):
    """published -> Firth -> published with the command, twice; returns the last directory."""
    assert convert.main(["--from", str(source), "--to", str(folder / "firth")]) == 0
    assert convert.main(["--from", str(folder / "firth"), "--to", str(folder / "back")]) == 0
    return folder / "back"


def assert_same_files(source, back):
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors", ".txt"):
            assert (back / file.name).read_bytes() == file.read_bytes(), file.name


def rewrite(directory, change, metadata=None):
    """Apply a function of {name: array} to a directory's model.safetensors."""
    file = directory / "model.safetensors"
    tensors = change(safetensors.numpy.load_file(file))
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    safetensors.numpy.save_file(tensors, file, metadata or {"format": "pt"})


def edit_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# ------------------------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", CLASSES)
def test_round_trip_is_byte_identical(tmp_path, name):
    labels = dict(
        id2label={0: "bad", 1: "good", 2: "odd"}, label2id={"bad": 0, "good": 1, "odd": 2}
    )
    make_bert(tmp_path / "m", name, "gelu_tanh", **labels)
    add_tokenizer(tmp_path / "m")
    edit_config(tmp_path / "m", my_own_key={"kept": [1, 2]})
    back = round_trip(tmp_path / "m", tmp_path)
    assert_same_files(tmp_path / "m", back)
    assert {f.name for f in back.iterdir()} == {f.name for f in (tmp_path / "m").iterdir()} | {
        "README.md"
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_round_trip_of_half_precision_shards(tmp_path, dtype):
    import torch

    model = make_bert(tmp_path / "x", "BertForMaskedLM").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "m", max_shard_size="20KB")
    assert len(list((tmp_path / "m").glob("model-*.safetensors"))) > 2
    saved = read_model(tmp_path / "m")
    assert saved.dtypes == (dtype,)
    table = saved.params["encoder"]["word"]["embedding"]
    theirs = model.bert.embeddings.word_embeddings.weight.detach().float().numpy()
    assert table.dtype == np.float32 and np.array_equal(table, theirs)
    assert_same_files(tmp_path / "m", round_trip(tmp_path / "m", tmp_path))


def old_spelling(tensors):
    """A file as it was published in 2019: gamma and beta, position ids, the decoder's copies."""
    tensors = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for k, v in tensors.items()
    }
    tensors["bert.embeddings.position_ids"] = np.arange(40)[None]
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    return tensors


def only_the_decoders_copies(tensors):
    tensors["cls.predictions.decoder.weight"] = tensors.pop(
        "bert.embeddings.word_embeddings.weight"
    )
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    return tensors


@pytest.mark.parametrize("change", [old_spelling, only_the_decoders_copies])
def test_old_and_tied_names_are_read_and_written_back(tmp_path, change):
    make_bert(tmp_path / "m", "BertForPreTraining")
    expected = flatten_dict(read_model(tmp_path / "m").params)
    rewrite(tmp_path / "m", change, metadata={"made": "by hand"})
    found = flatten_dict(read_model(tmp_path / "m").params)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[k], expected[k]) for k in expected)
    assert_same_files(tmp_path / "m", round_trip(tmp_path / "m", tmp_path))


def test_round_trip_of_a_file_in_another_order(tmp_path):
    """Headers other writers lay out differently come back too: unsorted names, no padding."""
    make_bert(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = safetensors.numpy.load_file(file)
    header, data = {}, b""
    for name in reversed(sorted(tensors)):
        size = tensors[name].nbytes
        header[name] = {
            "shape": list(tensors[name].shape),
            "data_offsets": [len(data), len(data) + size],
            "dtype": "F32",
        }
        data += tensors[name].tobytes()
    text = json.dumps(header, indent=1).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert_same_files(tmp_path / "m", round_trip(tmp_path / "m", tmp_path))


def test_round_trip_of_minilm(tmp_path):
    back = round_trip(minilm(), tmp_path)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt", "README.md"):
        assert (back / name).read_bytes() == (minilm() / name).read_bytes(), name


# --------------------------------------------------------------------- loading in transformers


@pytest.mark.parametrize(
    ("made_as", "heads", "pooler", "published_as"),
    [
        ("BertForPreTraining", ("mlm", "nsp"), True, "BertForPreTraining"),
        ("BertForPreTraining", ("mlm",), False, "BertForMaskedLM"),
        ("BertForPreTraining", ("nsp",), True, "BertForNextSentencePrediction"),
        ("BertForPreTraining", (), True, "BertModel"),
        ("BertForSequenceClassification", ("classifier",), True, "BertForSequenceClassification"),
    ],
)
def test_a_trained_model_loads_in_transformers(tmp_path, made_as, heads, pooler, published_as):
    """No key is missing or left over, and the outputs are ours."""
    import torch
    import transformers

    make_bert(tmp_path / "m", made_as, "gelu_tanh", num_labels=3)
    tokenizer = add_tokenizer(tmp_path / "m")
    read = read_model(tmp_path / "m")
    params = {name: read.params[name] for name in ("encoder", *heads)}
    if not pooler:
        params["encoder"] = {k: v for k, v in params["encoder"].items() if k != "pooler"}
    labels = ("no", "perhaps", "yes") if heads == ("classifier",) else None
    saved = dataclasses.replace(
        read,
        spec=read.spec | {"pooler": pooler},
        heads=heads,
        params=params,
        labels=labels,
        published=None,
    )
    write_published(tmp_path / "out", saved)

    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [published_as]
    loader = getattr(transformers, published_as)
    model, report = loader.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values()), report
    auto = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert auto.hidden_act == "gelu_new" and auto.pad_token_id == tokenizer.pad_token_id
    if labels:
        assert auto.id2label == dict(enumerate(labels)) and auto.label2id["yes"] == 2
        assert auto.problem_type == "single_label_classification"
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\nlibrary_name:")

    text = ["the cat sat on the mat", "a dog ran"]
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    batch = again(text, padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == tokenizer(text, padding=True)["input_ids"]
    with torch.no_grad():
        theirs = model.eval()(**batch, output_hidden_states=True)
    args = (batch[k].numpy() for k in ("input_ids", "token_type_ids", "attention_mask"))
    tokens, segments, mask = args
    out, logits = saved.model().apply({"params": params}, tokens, segments, mask.astype(bool))
    for ours, hidden in zip(out.hidden, theirs.hidden_states, strict=True):
        np.testing.assert_allclose(ours, hidden.numpy(), rtol=0, atol=1e-5)
    for head, name in (("mlm", "prediction_logits"), ("nsp", "seq_relationship_logits")):
        if heads == ("mlm", "nsp"):
            np.testing.assert_allclose(logits[head], theirs[name].numpy(), rtol=0, atol=1e-5)
    if len(heads) == 1:
        np.testing.assert_allclose(logits[heads[0]], theirs.logits.numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "labels", "regression"),
    [
        (dict(num_labels=1), None, True),
        (dict(num_labels=3, problem_type="regression"), None, True),
        (dict(num_labels=3), None, False),
        (dict(id2label={0: "a", 1: "b"}), ("a", "b"), False),
    ],
)
def test_labels_and_kind_of_task(tmp_path, settings, labels, regression):
    make_bert(tmp_path / "m", "BertForSequenceClassification", **settings)
    saved = read_model(tmp_path / "m")
    assert (saved.heads, saved.labels, saved.regression) == (("classifier",), labels, regression)
    # Written anew, for lack of what it was published as, it is read as the same.
    write_published(tmp_path / "new", dataclasses.replace(saved, published=None))
    again = read_model(tmp_path / "new")
    for field in ("spec", "heads", "num_labels", "labels", "regression"):
        assert getattr(again, field) == getattr(saved, field), field


def test_changed_weights_are_written_as_they_are(tmp_path):
    """A half-precision source does not round what was trained on in float32."""
    import torch

    make_bert(tmp_path / "x").to(torch.float16).save_pretrained(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    flat = {k: v + np.float32(1e-6) for k, v in flatten_dict(saved.params).items()}
    write_published(tmp_path / "out", dataclasses.replace(saved, params=unflatten_dict(flat)))
    again = read_model(tmp_path / "out")
    assert again.dtypes == ("float32",)
    found = flatten_dict(again.params)
    assert all(np.array_equal(found[k], flat[k]) for k in flat)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"


# ------------------------------------------------------------------------------------ workdirs


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
    # Published from there, the weights' file is the one that they came from.
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


def test_a_description_may_leave_defaults_out(tmp_path):
    make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    write_firth(tmp_path / "f", saved)
    file = tmp_path / "f" / "model.json"
    whole = json.loads(file.read_text())
    for field in ("norm_epsilon", "dropout", "classifier_dropout", "type_vocab_size", "pooler"):
        del whole["model"][field]
    file.write_text(json.dumps(whole))
    assert read_model(tmp_path / "f").spec == saved.spec


def test_a_workdir_without_a_checkpoint_is_refused(tmp_path):
    make_bert(tmp_path / "m")
    make_workdir(tmp_path / "run", read_model(tmp_path / "m"), False, {})
    with pytest.raises(FirthError, match="no checkpoint"):
        read_model(tmp_path / "run")


# ----------------------------------------------------------------------------------- bad input


def drop(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def change(name, function):
    return lambda tensors: tensors | {name: function(tensors[name])}


WORD = "bert.embeddings.word_embeddings.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (drop(WORD), f"lacks 1 of its tensors: {WORD}"),
        (
            drop("bert.encoder.layer.1.output.dense.bias"),
            r"lacks 1 of its tensors: bert\.encoder\.layer\.1\.output\.dense\.bias",
        ),
        (drop("cls.predictions.bias"), r"lacks 1 of its tensors: cls\.predictions\.bias"),
        (drop("bert.pooler.dense.bias"), r"lacks 1 of its tensors: bert\.pooler\.dense\.bias"),
        (change(WORD, lambda x: x[:-2]), rf"{WORD} is \[95, 36\], expected \[97, 36\]"),
        (change(WORD, lambda x: x.astype(np.int8)), f"{WORD} is int8; expected float32"),
        (
            lambda t: t | {"cls.predictions.decoder.weight": t[WORD] + 1},
            "word_embeddings.weight differs from cls.predictions.decoder.weight|"
            "decoder.weight differs from bert.embeddings.word_embeddings.weight",
        ),
        (lambda t: t | {"bert.embeddings.position_ids": np.ones((1, 40), int)}, "is not 0 .. 39"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, edit, message):
    make_bert(tmp_path / "m", "BertForPreTraining")
    rewrite(tmp_path / "m", edit)
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(model_type="t5"), r"model_type 't5' is none that Firth reads \(bert"),
        (dict(model_type=None), "model_type None"),
        (dict(is_decoder=True), "is_decoder=True is not supported, only False"),
        (dict(position_embedding_type="relative_key"), "position_embedding_type='relative_key'"),
        (dict(hidden_act="silu"), "hidden_act='silu' is not supported; one of gelu"),
        (dict(hidden_size="36"), "hidden_size='36', expected a positive integer"),
        (dict(num_attention_heads=5), "hidden_size=36 is not a multiple of model.num_heads=5"),
        (dict(num_hidden_layers=10**9), "tensors, too few for num_layers=1000000000"),
        (dict(vocab_size=2**31 - 1, hidden_size=2**31 - 1, num_attention_heads=1), "expected"),
        (dict(hidden_dropout_prob=-1), "hidden_dropout_prob=-1, expected a number"),
        (dict(id2label={"0": "a", "2": "b"}), "id2label must map 0 .. C-1"),
        (dict(architectures=7), None),
    ],
)
def test_wrong_settings_are_named_at_once(tmp_path, changes, message):
    make_bert(tmp_path / "m")
    edit_config(tmp_path / "m", **changes)
    if message is None:
        assert read_model(tmp_path / "m").heads == ()
        return
    began = time.perf_counter()
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "m")
    assert time.perf_counter() - began < 1


def test_positions_too_many_for_memory_are_refused_at_once(tmp_path):
    make_bert(tmp_path / "m")
    rewrite(tmp_path / "m", lambda t: t | {"embeddings.position_ids": np.arange(40)[None]})
    edit_config(tmp_path / "m", max_position_embeddings=2**31 - 1)
    began = time.perf_counter()
    with pytest.raises(FirthError, match=r"position_ids is not 0 \.\. 2147483646"):
        read_model(tmp_path / "m")
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [("BertForTokenClassification", "classifier"), ("BertForQuestionAnswering", "qa")],
)
def test_other_heads_are_left_out_with_a_warning(tmp_path, caplog, name, kind):
    make_bert(tmp_path / "m", name)
    with caplog.at_level(logging.WARNING, "firth"):
        saved = read_model(tmp_path / "m")
    assert saved.heads == () and saved.spec["pooler"] is False
    assert f"no place for 2 tensors, left out: {kind}" in caplog.text
    # What is written back is an encoder that transformers takes, without the head.
    write_published(tmp_path / "out", saved)
    assert read_model(tmp_path / "out").heads == ()


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(firth=2), "firth=2; this Firth reads version 1"),
        (dict(model={"family": "elmo"}), "model.family='elmo'; Firth knows bert"),
        (dict(model=[]), "is damaged"),
        (dict(heads="mlm"), "is damaged"),
        (dict(num_labels=-1), "num_labels=-1, expected a positive integer"),
        (dict(heads=["mlm"]), "lacks 5 of its tensors"),
        (dict(heads=["pooh"]), "there is no head 'pooh'"),
    ],
)
def test_a_wrong_description_is_named(tmp_path, changes, message):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(FirthError, match=message):
        read_model(tmp_path / "f")


def test_an_unknown_field_of_the_description_is_named(tmp_path):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "model.json"
    whole = json.loads(file.read_text())
    whole["model"]["hiden_size"] = 36
    file.write_text(json.dumps(whole))
    with pytest.raises(FirthError, match="model has no field hiden_size"):
        read_model(tmp_path / "f")


def test_a_damaged_original_section_is_named_and_escapes_nowhere(tmp_path):
    make_bert(tmp_path / "m")
    write_firth(tmp_path / "f", read_model(tmp_path / "m"))
    file = tmp_path / "f" / "model.json"
    whole = json.loads(file.read_text())
    header = whole["published"]["files"]["model.safetensors"]
    for files in ({"../m/model.safetensors": header}, {"x": "{"}, {"x": '{"a": 1}'}, [1]):
        whole["published"]["files"] = files
        file.write_text(json.dumps(whole))
        with pytest.raises(FirthError, match="the section `published` is damaged"):
            write_published(tmp_path / "out", read_model(tmp_path / "f"))
        assert not (tmp_path / "out").exists()


def test_what_is_no_model_is_named(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, message in (
        ("empty", "holds no model"),
        ("file", "is a file; expected a directory"),
        ("gone", "does not exist"),
    ):
        with pytest.raises(FirthError, match=message):
            read_model(tmp_path / name)
    assert cli.main(["convert", "--from", str(tmp_path / "gone"), "--to", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_vocabulary_that_is_too_large_is_refused(tmp_path):
    make_bert(tmp_path / "m", shape="relu")  # 50 tokens in the model
    add_tokenizer(tmp_path / "m")  # and 72 in the vocabulary
    with pytest.raises(FirthError, match=r"tokenizer has 72 tokens, but the model .* has 50"):
        read_model(tmp_path / "m").tokenizer()


# ------------------------------------------------------------------------------------- writing


def contents(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_only_a_model_directory_is_overwritten_and_only_when_asked(tmp_path):
    make_bert(tmp_path / "m")
    saved = read_model(tmp_path / "m")
    (tmp_path / "empty").mkdir()
    write_firth(tmp_path / "empty", saved)
    with pytest.raises(FirthError, match="is not empty; choose another, or overwrite"):
        write_firth(tmp_path / "empty", saved)
    write_published(tmp_path / "empty", saved, overwrite=True)
    assert not (tmp_path / "empty" / "model.json").exists()

    work = tmp_path / "work"
    (work / "checkpoints").mkdir(parents=True)
    (work / "config.json").write_text("{}")
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "thesis.txt").write_text("years of work")
    for precious in (work, notes):
        before = contents(precious)
        with pytest.raises(FirthError, match="it is not overwritten"):
            write_firth(precious, saved, overwrite=True)
        assert contents(precious) == before
    with pytest.raises(FirthError, match="is a file"):
        write_firth(notes / "thesis.txt", saved, overwrite=True)


@pytest.mark.parametrize("write", [write_firth, write_published])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, write):
    make_bert(tmp_path / "m", "BertForMaskedLM")
    saved = dataclasses.replace(read_model(tmp_path / "m"), published=None)
    write(tmp_path / "out", saved)
    before = contents(tmp_path)

    def full(*_):
        raise safetensors.SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.numpy, "save_file", full)
    for target in ("out", "other"):
        with pytest.raises(FirthError, match="cannot be written: No space left on device"):
            write(tmp_path / target, saved, overwrite=True)
    assert contents(tmp_path) == before and not (tmp_path / "other").exists()


def test_a_failed_exchange_of_directories_brings_the_old_one_back(tmp_path, monkeypatch):
    target = tmp_path / "d"
    target.mkdir()
    (target / "config.json").write_text("old")
    real, calls = os.rename, []

    def failing(source, destination):
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "input/output error")
        real(source, destination)

    monkeypatch.setattr(os, "rename", failing)
    with pytest.raises(FirthError, match="cannot be written"), new_directory(target, True) as new:
        (new / "config.json").write_text("new")
    assert contents(tmp_path) == {(target / "config.json").relative_to(tmp_path): b"old"}


# ----------------------------------------------------------------------------------------- hub


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
