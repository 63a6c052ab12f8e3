"""Scores of an ELMo: both directions beside torch, as texts, in a mixture and for minimal pairs."""

import dataclasses
import json

import numpy as np
import pytest
from helpers.elmo import in_torch, made

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference.score import score
from firth.tokenizers.load import train_tokenizer
from firth.tokenizers.spelling import spell
from firth.weights.read import Saved
from firth.weights.write import write_firth

LINES = ["the cat sat on the mat", "a dog ran", "the dog"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`store`; `elmo`, random weights with its softmax; `bare`, the same without one."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    words = train_tokenizer("word", LINES, None)
    words.save(folder / "tok")
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/store"]
    assert cli.main(["prepare", *paths, "--sentences=line", "--document=file"]) == 0
    for name, heads in {"elmo": ("bilm",), "bare": ()}.items():
        model, params = made(heads, vocab_size=words.vocab_size, max_characters=12)
        spec = dataclasses.asdict(model.encoder.config) | {"family": "elmo"}
        saved = Saved(
            spec, heads, 2, None, False, params, folder, "firth", tokenizer_path=folder / "tok"
        )
        write_firth(folder / name, saved)
    return folder


def expected(torch, encoder, text):
    """The mean of both log-probabilities of each word, in torch and float64."""
    params, words = encoder.saved.params, encoder.saved.tokenizer()
    config = encoder.model.encoder.config
    ids, _ = spell(["<S>", *text.split(), "</S>"], config.max_characters)
    ((*_, last_WD),), _ = in_torch(torch, config, params, [ids], marks=True)
    softmax = {name: np.float64(value) for name, value in params["bilm"].items()}
    values = []
    for i, word in enumerate(text.split(), 1):
        for h_P in (last_WD[i - 1, : config.width], last_WD[i + 1, config.width :]):
            logits_V = softmax["table"] @ h_P + softmax["bias"]
            values.append(logits_V[words.id(word)] - np.log(np.exp(logits_V).sum()))
    return np.array(values).reshape(-1, 2).mean(1)


def test_a_word_has_the_mean_of_both_directions(torch, place):
    encoder = firth.load(place / "elmo")
    texts = [*LINES, "", "mat"]
    for batch_size in (1, 32):
        found = score(encoder, texts, batch_size=batch_size)
        for text, one in zip(texts, found, strict=True):
            assert one.kind == "bidirectional" and one.tokens == tuple(text.split())
            np.testing.assert_allclose(one.log_probs, expected(torch, encoder, text), atol=1e-5)


def test_the_text_of_a_store(torch, place, capsys):
    encoder = firth.load(place / "elmo")
    models = f"--models={place}/elmo,{place}/counts"
    counted = ["--config=ngram.py:1,smoothing=add_k", f"--config.data.store={place}/store"]
    assert cli.main(["train", *counted, f"--workdir={place}/counts"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", models, f"--data={place}/store", "--json"]) == 0
    alone, _, mixed = json.loads(capsys.readouterr().out)
    losses = -np.concatenate([expected(torch, encoder, text) for text in LINES])
    assert alone["measures"]["lm_perplexity"] == pytest.approx(np.exp(losses.mean()), rel=1e-5)
    assert alone["pseudo"] and mixed["pseudo"] and not alone["ends"]


def test_minimal_pairs(torch, place, capsys):
    encoder = firth.load(place / "elmo")
    pairs = [("the cat sat", "cat the sat"), ("a dog ran", "ran a dog"), ("the", "the")]
    rows = [dict(sentence_good=good, sentence_bad=bad) for good, bad in pairs]
    (place / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = [f"--models={place}/elmo", f"--pairs={place}/pairs.jsonl", "--json"]
    assert cli.main(["evaluate", *argv]) == 0
    sums = np.array([[expected(torch, encoder, text).sum() for text in pair] for pair in pairs])
    right = (sums[:, 0] > sums[:, 1]) + 0.5 * (sums[:, 0] == sums[:, 1])
    found = json.loads(capsys.readouterr().out)["elmo"]
    assert found["total"]["share"] == pytest.approx(right.mean())
    assert found["kind"] == "bidirectional"


def test_without_a_softmax_it_predicts_no_word(place):
    with pytest.raises(FirthError, match="no softmax over words"):
        score(firth.load(place / "bare"), ["the cat"])


def test_there_is_no_end_to_score(place):
    with pytest.raises(FirthError, match="no end of the text"):
        score(firth.load(place / "elmo"), ["the cat"], end=True)
