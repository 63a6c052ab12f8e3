"""Masked models in `firth evaluate --models`, beside one that gives probabilities of texts."""

import json

import jax
import numpy as np
import pytest

import firth
from firth import cli
from firth.inference.score import score
from firth.models.model import create
from firth.tokenizers.load import train_tokenizer
from firth.weights.read import Saved
from firth.weights.write import write_firth

LINES = ["the cat sat on the mat", "the dog sat on the cat", "a dog ran", "the cat ran to a dog"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`bert` with random weights, `bigrams`, and the text in `store`."""
    folder = tmp_path_factory.mktemp("masked")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    pieces = train_tokenizer("wordpiece", LINES, 60)
    pieces.save(folder / "tok")
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/store"]
    assert cli.main(["prepare", *paths, "--sentences=line"]) == 0
    fields = [f"--config.data.store={folder}/store", "--config.model.smoothing=add_k"]
    assert cli.main(["train", "--config=ngram.py:2", f"--workdir={folder}/bigrams", *fields]) == 0
    spec = dict(family="bert", vocab_size=pieces.vocab_size, num_layers=1, hidden_size=16)
    spec |= dict(num_heads=2, intermediate_size=24, max_length=40, init_stddev=0.5)
    params = create(spec, ("mlm",)).init(jax.random.key(1), np.zeros((1, 4), int))["params"]
    params = jax.tree.map(np.asarray, jax.device_get(params))
    saved = Saved(
        spec, ("mlm",), 2, None, False, params, folder, "firth", tokenizer_path=folder / "tok"
    )
    write_firth(folder / "bert", saved)
    return folder


def compared(place, capsys, *arguments):
    capsys.readouterr()
    models = f"--models={place}/bigrams,{place}/bert"
    assert cli.main(["evaluate", models, f"--data={place}/store", *arguments]) == 0
    return capsys.readouterr().out


def test_the_ends_of_texts_count_for_no_model(place, capsys):
    bigrams, bert, both = json.loads(compared(place, capsys, "--json", f"--tune={place}/store"))
    assert [row["pseudo"] for row in (bigrams, bert, both)] == [False, True, True]
    assert not any(row["ends"] for row in (bigrams, bert, both))
    encoder = firth.load(place / "bert")
    own = np.concatenate([found.log_probs for found in score(encoder, LINES)]).astype(np.float64)
    assert bert["measures"]["tokens"] == len(own) == bigrams["measures"]["tokens"]
    assert bert["measures"]["lm_loss"] == pytest.approx(-own.mean(), abs=1e-5)
    characters = sum(len(line) + 1 for line in LINES)
    bits = -own.sum() / np.log(2) / characters
    assert bert["measures"]["bits_per_character"] == pytest.approx(bits, abs=1e-5)
    counted = firth.inference.language.models.load_model(place / "bigrams")
    theirs = np.concatenate([found.log_probs for found in score(counted, LINES)])
    assert bigrams["measures"]["lm_loss"] == pytest.approx(-theirs.mean(dtype=float), abs=1e-5)
    mixed = np.log(np.exp(np.stack([theirs, own])).T @ both["weights"])
    assert both["measures"]["lm_loss"] == pytest.approx(-mixed.mean(), abs=1e-5)
    least = min(bigrams["measures"]["lm_loss"], bert["measures"]["lm_loss"])
    assert both["measures"]["lm_loss"] <= least + 1e-4  # the weights were tuned on this very text


def test_the_table_says_what_the_figures_are(place, capsys):
    said = compared(place, capsys)
    assert "bert *" in said and "bigrams + bert *" in said and "bigrams *" not in said
    assert "ends left out" in said and "pseudo-perplexity" in said
    alone = ["evaluate", f"--models={place}/bigrams", f"--data={place}/store"]
    assert cli.main(alone) == 0
    said = capsys.readouterr().out
    assert "ends included" in said and "pseudo" not in said


def test_what_needs_a_state_refuses_a_masked_model(place, capsys):
    alone = ["evaluate", f"--models={place}/bert", f"--data={place}/store"]
    assert cli.main([*alone, "--dynamic=0.1"]) == 2
    assert "--dynamic needs a model with memory" in capsys.readouterr().err
