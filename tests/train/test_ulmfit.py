"""ULMFiT from end to end: a language model moves to other words, then is unfrozen by stages."""

import csv
import shutil

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers.cases import nightly
from helpers.published.bert import add_tokenizer, make_bert
from helpers.runs import WORDS, assert_same_bytes, logged, make_corpus

import firth
from firth.cli import main
from firth.errors import FirthError
from firth.training.checkpoint import Checkpoints
from firth.weights.read import read_model

SHORT = ["--config.data.loader=thread", "--config.progress=False", "--config.curves=False"]
SHORT += ["--config.batch_size=8", "--config.log_every=1", "--config.eval.batch_size=8"]
TEXT = [*SHORT, "--config.steps=2", "--config.data.heldout=0.2", "--config.eval.batches=1"]
BEGINS = (0, 3, 6, 9)  # of the classifier's stages: head, layer 1, layer 0, embeddings
STEPS = 12
FIRST = {"classifier/": 0, "layer_1/": 3, "layer_0/": 6, "encoder/": 9}  # the step that moves it


def train(*argv):
    assert main(["train", *map(str, argv)]) == 0


def prepare(folder, corpus, name, **more):
    line = f"prepare --input {corpus} --tokenizer {folder}/tok-{name} --train-tokenizer word "
    line += f"--sentences line --output {folder}/{name}"
    assert main([*line.split(), *(f"--{k.replace('_', '-')}={v}" for k, v in more.items())]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A backward language model `lm`, made of `wiki` for the words of another text; labels."""
    folder = tmp_path_factory.mktemp("ulmfit")
    prepare(folder, make_corpus(folder / "wiki.txt"), "wiki", vocab_size=24)
    prepare(folder, make_corpus(folder / "own.txt", seed=1), "own")
    model = "ulmfit.py:pretrain,size=tiny,length=8,backward=True"
    sizes = ["--config.model.hidden_size=16", "--config.model.embedding_size=8"]
    store = f"--config.data.store={folder}"
    train(f"--config={model}", f"--workdir={folder}/pretrained", f"{store}/wiki", *TEXT, *sizes)
    model = f"ulmfit.py:lm,init={folder}/pretrained,length=8,backward=True"
    train(f"--config={model}", f"--workdir={folder}/lm", f"{store}/own", *TEXT)
    make_bert(folder / "bert", "BertForPreTraining", vocab_size=72, num_hidden_layers=2)
    add_tokenizer(folder / "bert")
    rng = np.random.default_rng(0)
    for name, rows in (("train", 24), ("dev", 8)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for i in range(rows):
                writer.writerow([" ".join(rng.choice(WORDS, 6)), "xy"[i % 2]])
    return folder


def classify(folder, workdir, model):
    recipe = {
        "awd_lstm": f"ulmfit.py:classifier,init={folder}/lm,length=16",
        "bert": f"finetune.py:init={folder}/bert,length=16",
    }[model]
    files = [f"--config.data.{name}={folder}/{name}.csv" for name in ("train", "dev")]
    more = ["--config.unfreeze_epochs=1.0", "--config.epochs=4.0", "--config.checkpoint.every=1"]
    train(f"--config={recipe}", f"--workdir={workdir}", *files, *more, *SHORT)
    return workdir


@pytest.fixture(scope="module", params=["awd_lstm", nightly("bert")])
def classifier(request, folder, tmp_path_factory):
    """(family, workdir) of a run in stages that has kept every step."""
    workdir = tmp_path_factory.mktemp("runs") / request.param
    return request.param, classify(folder, workdir, request.param)


def rates(workdir):
    return [entry["train/learning_rate"] for entry in logged(workdir) if "train/loss" in entry]


def params_after(workdir, step):
    saves = Checkpoints(workdir, read_only=True)
    try:
        return flatten_dict(saves.restore_params(step)[1], sep="/")
    finally:
        saves.close()


def test_words_of_the_target_that_the_weights_lack_are_learned(folder):
    before, after = read_model(folder / "pretrained"), read_model(folder / "lm")
    own = after.tokenizer()
    assert before.spec["vocab_size"] == 24 < own.vocab_size == after.spec["vocab_size"]
    assert after.spec["backward"] and before.spec["backward"]
    assert after.params["encoder"]["word"]["embedding"].shape == (own.vocab_size, 8)
    np.testing.assert_allclose(rates(folder / "lm"), [4e-3 * 2.6 / 32, 4e-3 * 2.6], rtol=1e-5)


def test_other_words_need_a_transfer(folder, tmp_path, capsys):
    argv = [f"--config=adapt.py:init={folder}/pretrained,length=8", f"--workdir={tmp_path}/run"]
    argv += [f"--config.data.store={folder}/own", *TEXT]
    assert main(["train", *argv]) == 2
    said = capsys.readouterr().err
    assert "another tokenizer" in said and "--config.transfer_vocabulary=True" in said
    argv[0] = f"--config=ulmfit.py:lm,init={folder}/pretrained,length=8"
    assert main(["train", *argv]) == 2
    assert "data.backward=False, but model.backward=True: set both" in capsys.readouterr().err


def test_what_is_frozen_does_not_move(classifier, folder):
    """To the bit, until the first step of its stage, which moves it."""
    family, workdir = classifier
    start = read_model(folder / {"awd_lstm": "lm", "bert": "bert"}[family]).params
    before = flatten_dict({"encoder": start["encoder"]}, sep="/")
    for step in range(1, STEPS + 1):
        after = params_after(workdir, step)
        for name, begins in FIRST.items():
            group = [path for path in before if name in path and path in after]
            if name == "encoder/":
                group = [path for path in group if "layer_" not in path and "pooler" not in path]
            moved = [not np.array_equal(before[path], after[path]) for path in group]
            assert any(moved) == (step > begins) or not group, (step, name)
        before = after


@pytest.mark.slow
def test_a_run_goes_on_from_the_border_of_stages_to_the_same_bytes(classifier, folder, tmp_path):
    family, workdir = classifier
    for step in (2, 3, 9, 10):
        parts = shutil.copytree(workdir, tmp_path / str(step))
        for path in (parts / "checkpoints").iterdir():
            if path.name.isdigit() and int(path.name) > step:
                shutil.rmtree(path)
        classify(folder, parts, family)
        assert_same_bytes(workdir, parts, STEPS)


def test_rates_rise_in_every_stage(classifier):
    family, workdir = classifier
    found = np.reshape(rates(workdir), (4, 3))
    if family == "awd_lstm":  # three steps: from a 32nd to the peak at the second
        np.testing.assert_allclose(found[:, :2], [[0.01 / 32, 0.01]] * 4, rtol=1e-5)
    assert len(np.unique(found, axis=0)) == 1


def test_too_few_epochs_for_the_stages_are_refused(folder, tmp_path, capsys):
    argv = [f"--config=finetune.py:init={folder}/bert,length=16", f"--workdir={tmp_path}/run"]
    argv += [f"--config.data.train={folder}/train.csv", "--config.unfreeze_epochs=1.0", *SHORT]
    assert main(["train", *argv]) == 2
    assert "2 layers and the embeddings are all trained after step" in capsys.readouterr().err


def test_a_backward_model_labels_texts_and_nothing_else(folder):
    encoder = firth.load(folder / "lm")
    for use in (
        lambda: encoder(["the cat sat"]),
        lambda: encoder.generate("the cat"),
        lambda: encoder.encode(["the cat sat"]),
    ):
        with pytest.raises(FirthError, match="reads texts from their end"):
            use()
    with pytest.raises(FirthError, match="reads texts from their end"):
        from firth.inference.score import score

        score(encoder, ["the cat sat"])
