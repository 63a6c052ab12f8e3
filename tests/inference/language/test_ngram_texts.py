"""`firth score` and `firth generate` with an n-gram model."""

import json

import numpy as np
import pytest

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference.generate import generate
from firth.inference.language.models import load_model
from firth.inference.language.ngram import NgramLM, choose
from firth.inference.score import kind_of, score

TEXT = "the cat sat on the mat\nthe dog sat on the cat\na dog ran\nthe cat ran to a dog\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ngram")
    (folder / "text.txt").write_text(TEXT)
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/s"]
    assert cli.main(["prepare", *paths, "--train-tokenizer=word", "--sentences=line"]) == 0
    fields = [f"--config.data.store={folder}/s", "--config.model.discount_fallback=(.5,1.0,1.5)"]
    assert cli.main(["train", "--config=ngram.py:3", f"--workdir={folder}/w", *fields]) == 0
    return load_model(folder / "w")


def test_scores_are_those_of_the_model(model):
    scored, empty, other = score(model, ["the cat ran", "", "a zebra"], end=True)
    assert scored.tokens == ("the", "cat", "ran", "<eos>") and scored.kind == kind_of(model)
    context = [model.model.size]
    for token, value in zip(scored.ids, scored.log_probs, strict=True):
        assert value == pytest.approx(model.model.distribution(context)[token], rel=1e-5)
        context.append(token)
    assert empty.tokens == ("<eos>",) and other.tokens == ("a", "<unk>", "<eos>")
    assert score(model, ["", "the"])[0].tokens == ()


def test_generation_follows_the_model(model):
    one = generate(model, "the dog sat", greedy=True, max_tokens=3)[0]
    assert one.text.split() == ["on", "the", "cat"]
    draws = generate(model, ["", "the cat"], seed=1, samples=40, max_tokens=8)
    assert draws == generate(model, ["", "the cat"], seed=1, samples=40, max_tokens=8)
    assert len({draw.text for draw in draws}) > 10
    assert {draw.reason for draw in draws} == {"end", "length"}
    first = [draw.ids[0] for draw in generate(model, "", samples=400, max_tokens=1)]
    p = np.exp(model.model.distribution([model.model.size]))
    share = np.bincount(first, minlength=len(p)) / 400
    np.testing.assert_allclose(share, p, atol=0.08)


def test_a_draw_respects_its_settings():
    log_probs = np.log([0.5, 0.3, 0.15, 0.05])

    def drawn(**changes):
        settings = dict(temperature=1.0, top_k=0, top_p=1.0, greedy=False) | changes
        rng = np.random.default_rng(0)
        return {choose(log_probs, rng, **settings) for _ in range(300)}

    assert drawn() == {0, 1, 2, 3} and drawn(greedy=True) == {0}
    assert drawn(top_k=2) == {0, 1} and drawn(top_p=0.79) == {0, 1}
    assert drawn(top_p=0.81) == {0, 1, 2} and drawn(temperature=0.05) == {0}


def test_the_commands(model, tmp_path, capsys):
    (tmp_path / "t.txt").write_text("the cat sat\na dog\n")
    arguments = [f"--model={model.source}", f"--input={tmp_path}/t.txt", "--output=-"]
    assert cli.main(["score", *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["causal"] * 2
    assert cli.main(["generate", f"--model={model.source}", "--prompt=the dog", "--greedy"]) == 0
    assert capsys.readouterr().out.startswith("the dog sat ")


def test_what_it_cannot_do_is_said(model):
    with pytest.raises(FirthError, match="holds an n-gram model, which has no layers"):
        firth.load(model.source)
    assert isinstance(model, NgramLM)
