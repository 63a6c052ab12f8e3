"""Runs that learn to answer questions: their rows, their scores, and files of predictions."""

import json

import jax
import numpy as np
import pytest
from helpers.questions import asked, squad, towns, write
from helpers.quick import jit

from firth import recipe
from firth.cli import main
from firth.data.answering.decode import Predicted
from firth.errors import FirthError
from firth.inference.answering.answerer import ROUNDING
from firth.models.model import bound, create
from firth.run import experiment
from firth.run.evaluator import Heldout
from firth.tokenizers.load import train_tokenizer
from firth.training.partition import create_mesh
from firth.training.state import TrainState
from firth.weights.description import complete_spec
from firth.weights.read import Saved
from firth.weights.write import write_firth

SIZES = dict(num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64, max_length=64)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with files of questions, and an encoder with random weights."""
    folder = tmp_path_factory.mktemp("questions")
    write(folder / "v1.json", towns())
    write(folder / "v2.json", towns(unanswerable=True))
    bare = towns()
    for paragraph in bare["data"][0]["paragraphs"]:
        for entry in paragraph["qas"]:
            del entry["answers"]
    write(folder / "bare.json", bare)
    texts = [paragraph["context"] for paragraph in bare["data"][0]["paragraphs"]]
    texts += [q["question"] for p in towns(True)["data"][0]["paragraphs"] for q in p["qas"]]
    tokenizer = train_tokenizer("wordpiece", texts * 3, 200)
    tokenizer.save(folder / "tok")
    spec = complete_spec({"family": "bert", "vocab_size": tokenizer.vocab_size} | SIZES, "")
    params = create(spec, ()).init(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    files = (jax.device_get(params), folder, "firth", ("float32",), folder / "tok")
    write_firth(folder / "encoder", Saved(spec, (), 2, None, False, *files))
    return folder


def config_of(files, version="v1", **changes):
    fields = {f"data.{split}": str(files / f"{version}.json") for split in ("train", "dev")}
    fields |= {"batch_size": 5, "eval.batch_size": 4, "mesh.data": 1} | changes
    name = f"squad.py:{version},init={files / 'encoder'},length=40"
    return recipe.with_fields(recipe.read_recipe(name), fields)


def built(config):
    return experiment.build(config, create_mesh(config.mesh, jax.devices()[:1]))


def test_the_parts_of_a_run(files):
    run = built(config_of(files, **{"data.test": str(files / "bare.json")}))
    assert run.task.kind == "answering" and run.best == "dev/f1"
    assert set(run.heldout) == {"dev", "test"} and run.baselines.keys() == {"dev"}
    assert run.steps == 6 and run.evaluate_every == 2  # 10 windows, 2 batches, 3 epochs
    assert set(run.batch(0)) >= {"starts", "ends", "weight", "segments"}
    assert run.overview[1] == "train: 10 questions on 5 texts, 10 windows"
    assert "dev: baseline (always the whole context)" in run.overview[-1]
    assert built(config_of(files, "v2")).baselines["dev"].metrics == {"f1": 1 / 3, "exact": 1 / 3}


def gold(run, split):
    """Outputs of a model that is right of every window: great logits at the places of answers."""
    for batch in run.heldout[split]():
        shape = batch["tokens"].shape
        logits = np.zeros((*shape, 2), np.float32)
        rows = np.arange(shape[0])
        logits[rows, batch["starts"], 0] = logits[rows, batch["ends"], 1] = 10
        yield {"example": batch["example"], "weight": batch["weight"], "logits": logits}


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("length", [40, 15])
def test_right_logits_score_as_right(files, version, length):
    """Also of texts in several windows, most of which do not hold the answer."""
    config = config_of(files, version, **{"data.length": length, "data.stride": 3})
    config.data.question_length = 6
    run = built(config)
    assert (len(run.scorers["dev"].func.__self__.windows["dev"]) > 15) == (length == 15)
    scores, predicted = run.scorers["dev"](list(gold(run, "dev")))
    assert scores["f1"] == scores["exact"] == 1.0
    assert isinstance(predicted, Predicted) and (predicted.threshold is None) == (version == "v1")
    assert predicted.texts(predicted.threshold)["Eve-1"] == "New York"
    if version == "v2":
        assert scores["unanswerable_f1"] == scores["best_f1"] == 1.0
        assert predicted.texts(0.0)["Eve-3"] == "" and predicted.texts(None)["Eve-3"] != ""


def test_the_threshold_of_the_recipe_decides(files):
    run = built(config_of(files, "v2", **{"objective.null_threshold": 1e6}))
    scores, predicted = run.scorers["dev"](list(gold(run, "dev")))
    assert scores["unanswerable_f1"] == 0.0 and scores["answerable_f1"] == scores["best_f1"] == 1.0
    assert predicted.texts(predicted.threshold)["Eve-3"] != ""


def test_an_evaluator_measures_questions(files):
    config = config_of(files, "v2", **{"data.test": str(files / "bare.json")})
    run, mesh = built(config), create_mesh(config.mesh, jax.devices()[:1])
    params = run.model.init(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    heldout = Heldout(run, config, mesh)
    found = heldout.run(TrainState(np.zeros((), np.int32), 0, params, (), {}, {}))
    assert {"dev/f1", "dev/best_f1", "dev/answer_loss", "dev/answer_accuracy"} <= set(found)
    means, predicted = heldout.measure(params, "test")
    assert means == {} and len(predicted.texts(None)) == 10


def test_a_small_encoder_learns_its_questions(files):
    """To the last one: the loss, its gradient, the targets and the decoding fit together."""
    run = built(config_of(files, **{"model.dropout": 0.0, "model.attention_dropout": 0.0}))
    params = run.model.init(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    objective = run.objective
    batches = [run.batch(step) for step in range(2)]

    def loss(params, batch):
        def losses(model):
            sums, _ = objective.losses(model, batch, train=False)
            return sums["answer"] / objective.weights(batch)["answer"]

        return bound(run.model, losses)(params)

    def update(params, moment, batch):
        gradient = jax.grad(loss)(params, batch)
        moment = jax.tree.map(lambda m, g: 0.9 * m + g, moment, gradient)
        return jax.tree.map(lambda p, m: p - 0.03 * m, params, moment), moment

    step, moment = jit(update), jax.tree.map(np.zeros_like, params)
    for n in range(120):
        params, moment = step(params, moment, batches[n % 2])
    config = config_of(files)
    measured = Heldout(run, config, create_mesh(config.mesh, jax.devices()[:1]))
    found, _ = measured.measure(params, "dev")
    assert found["exact"] == found["f1"] == found["answer_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data.stride": 0}, r"data\.stride=0"),
        ({"data.misplaced": "no"}, r"misplaced='no'; expected one of refuse, skip"),
        ({"data.length": 65}, r"data\.length=65 is beyond the position table"),
        ({"objective.max_answer": 0}, r"objective\.max_answer=0"),
        ({"init_from": ""}, r"set data\.tokenizer, or init_from"),
    ],
)
def test_fields_out_of_range(files, changes, said):
    with pytest.raises(FirthError, match=said):
        built(config_of(files, **changes))


def test_a_file_whose_answers_are_misplaced(files, tmp_path):
    whole = squad(("Ann left.", [asked("1", "Who?", "Ann left.", "Ann")]))
    whole["data"][0]["paragraphs"][0]["qas"].append(
        {"id": "2", "question": "Who?", "answers": [{"text": "Bob", "answer_start": 0}]}
    )
    write(tmp_path / "a.json", whole)
    places = {f"data.{split}": str(tmp_path / "a.json") for split in ("train", "dev")}
    with pytest.raises(FirthError, match=r"question '2': answer 'Bob' is not at 0"):
        built(config_of(files, **places))
    run = built(config_of(files, **places, **{"data.misplaced": "skip"}))
    assert "1 left out, as an answer is not at its place: '2'" in run.overview[1]


@pytest.mark.slow
def test_a_run_learns_and_its_model_answers(files, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = [f"--config=squad.py:v2,init={files / 'encoder'},length=40", "--workdir=run"]
    argv += [f"--config.data.{split}={files / 'v2.json'}" for split in ("train", "dev", "test")]
    argv += ["--config.batch_size=8", "--config.eval.batch_size=8", "--config.epochs=60.0"]
    argv += ["--config.eval.epochs=20.0", "--config.schedule.lr=3e-3", "--config.model.dropout=0.0"]
    assert main(["train", *argv, "--config.model.attention_dropout=0.0"]) == 0
    assert "baseline (never an answer)" in capsys.readouterr().err
    names = {path.name for path in (tmp_path / "run/predictions").iterdir()}
    assert names == {"test.json", "nbest_test.json", "null_odds_test.json"}
    assert main(["evaluate", "--workdir=run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dev/answerable_f1"] > 0.5 and (tmp_path / "run/predictions/dev.json").is_file()
    assert main(["evaluate", "--model=run", f"--data={files / 'v2.json'}", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    tuned = found["dev/best_f1_threshold"] + ROUNDING
    assert again["null_threshold"] == pytest.approx(tuned, abs=1e-5)
    assert again["metrics"]["f1"] == pytest.approx(found["dev/best_f1"], abs=0.1)
    assert main(["report", "run"]) == 0
    page = (tmp_path / "run/report.html").read_text()
    assert "F1 of the answer" in page and "examples of dev" in page
