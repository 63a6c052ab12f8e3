"""Mixtures and caches against loops; `firth evaluate --models` on models that are there."""

import json
import math

import numpy as np
import pytest

from firth import cli
from firth.errors import FirthError
from firth.inference.language.mixture import cache, mix, tune

TEXT = "the cat sat on the mat\nthe dog sat on the cat\na dog ran\nthe cat ran to a dog\n"


def test_a_mixture_is_the_mean_of_probabilities():
    p = np.array([[0.2, 0.5, 0.0, 1e-300], [0.4, 0.1, 0.0, 1e-300]])
    with np.errstate(divide="ignore"):
        mixed = mix(np.log(p), [0.25, 0.75])
    np.testing.assert_allclose(np.exp(mixed), 0.25 * p[0] + 0.75 * p[1])
    assert mixed[2] == -math.inf and mixed[3] == pytest.approx(math.log(1e-300))


def test_em_finds_the_best_weights():
    rng = np.random.default_rng(0)
    log_probs = np.log(rng.uniform(0.01, 1, (2, 3000)) ** [[1.0], [1.3]])
    weights = tune(log_probs)
    grid = np.linspace(0, 1, 1001)
    likelihoods = [mix(log_probs, [w, 1 - w]).mean() for w in grid]
    assert weights.sum() == pytest.approx(1)
    assert mix(log_probs, weights).mean() == pytest.approx(max(likelihoods), abs=1e-4)
    with pytest.raises(FirthError, match=r"2 tokens .* have probability 0 in every model"):
        tune(np.array([[-np.inf, 0, -np.inf], [-np.inf, -1, -np.inf]]))


@pytest.mark.parametrize("size", [1, 7, 400])
def test_a_cache_is_the_share_of_the_last_tokens(size):
    tokens = np.random.default_rng(1).zipf(1.5, 300).clip(max=20)
    expected = []
    for t, token in enumerate(tokens):
        before = tokens[max(t - size, 0) : t].tolist()
        expected.append(before.count(token) / len(before) if before else 0)
    np.testing.assert_allclose(np.exp(cache(tokens, size)), expected)
    with pytest.raises(FirthError, match="at least 1 token"):
        cache(tokens, 0)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A store and the models of orders 1 and 3 that were counted on it."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text(TEXT)
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/s"]
    assert cli.main(["prepare", *paths, "--train-tokenizer=word", "--sentences=line"]) == 0
    fields = [f"--config.data.store={folder}/s", "--config.model.smoothing=add_k"]
    for order in (1, 3):
        recipe = f"--config=ngram.py:{order}"
        assert cli.main(["train", recipe, f"--workdir={folder}/n{order}", *fields]) == 0
    return folder


def evaluated(places, capsys, *arguments):
    capsys.readouterr()
    models = f"--models={places}/n1,{places}/n3"
    assert cli.main(["evaluate", models, f"--data={places}/s", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_pair_and_all(places, capsys):
    rows = evaluated(places, capsys, "--cache=5", f"--tune={places}/s")
    said = [" ".join(row["models"]) for row in rows]
    assert said == ["n1", "n3", "n1 n3", "n1 cache 5", "n3 cache 5", "n1 n3 cache 5"]
    losses = [row["measures"]["lm_loss"] for row in rows]
    assert all(sum(row["weights"]) == pytest.approx(1) for row in rows)
    assert losses[-1] <= min(losses) + 1e-4  # the weights were tuned on this very text
    equal = evaluated(places, capsys)[-1]
    assert equal["weights"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--models {w}/n1", "--models goes with --pairs FILE, or with --data STORE"),
        ("--models {w}/n1,{w}/n1 --data {w}/s", "expected different models"),
        ("--models {w}/n1 --data {w}/s --cache=-1", "at least 1 token"),
        ("--models {w}/n1 --data {w}/s --ends=document", "was counted with data.ends='sentence'"),
        ("--workdir {w}/n1 --tune {w}/s", "--tune is an option of --models"),
    ],
)
def test_bad_options(places, arguments, message, capsys):
    assert cli.main(["evaluate", *arguments.format(w=places).split()]) == 2
    assert message in capsys.readouterr().err
