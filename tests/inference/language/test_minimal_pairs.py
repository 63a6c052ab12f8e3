"""Minimal pairs: reading them, scoring them with every kind of model, and counting."""

import gzip
import json

import jax
import numpy as np
import pytest

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference.language.minimal_pairs import Pair, judge, read_pairs, table, totals
from firth.inference.language.models import load_model
from firth.models.model import create
from firth.tokenizers.load import train_tokenizer
from firth.weights.read import Saved
from firth.weights.write import write_firth

LINES = ["the cat sat on the mat", "the dog sat on the cat", "a dog ran", "the cat ran to a dog"]
PAIRS = [("the cat sat", "the sat cat"), ("a dog ran", "a mat ran"), ("the dog", "the dog")]
FAMILIES = {
    "bert": ("mlm", dict(num_heads=2, intermediate_size=24, max_length=40)),
    "gpt2": ("lm", dict(num_heads=2, intermediate_size=24, max_length=40)),
    "rnn": ("lm", dict(num_layers=1)),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """`words` and `pairs` of words counted, networks with random weights, and `pairs.jsonl`."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "text.txt").write_text("\n".join(LINES) + "\n")
    tokenizer = train_tokenizer("word", LINES, 60)
    pieces = train_tokenizer("wordpiece", LINES, 60)
    tokenizer.save(folder / "tok")
    pieces.save(folder / "pieces")
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/store"]
    assert cli.main(["prepare", *paths, "--sentences=line"]) == 0
    for order in (1, 2):
        fields = [f"--config.data.store={folder}/store", "--config.model.smoothing=add_k"]
        name = f"--workdir={folder}/ngram{order}"
        assert cli.main(["train", f"--config=ngram.py:{order}", name, *fields]) == 0
    for family, (head, fields) in FAMILIES.items():
        own, path = (pieces, "pieces") if family == "bert" else (tokenizer, "tok")
        spec = dict(family=family, vocab_size=own.vocab_size, hidden_size=16, init_stddev=0.5)
        spec |= dict(num_layers=1) | fields
        params = create(spec, (head,)).init(jax.random.key(1), np.zeros((1, 4), int))["params"]
        params = jax.tree.map(np.asarray, jax.device_get(params))
        saved = Saved(
            spec, (head,), 2, None, False, params, folder, "firth", tokenizer_path=folder / path
        )
        write_firth(folder / family, saved)
    rows = [dict(sentence_good=good, sentence_bad=bad) for good, bad in PAIRS]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows_of(*rows):
    """JSONL of (UID, linguistics_term, pairID, good, bad)."""
    names = ("UID", "linguistics_term", "pairID", "sentence_good", "sentence_bad")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


BLIMP = rows_of(
    ("one", "binding", "0", "a", "b"),
    ("one", "binding", "1", "c", "d"),
    ("two", "binding", "0", "e", "f"),
    ("three", "islands", "0", "g", "h"),
)


def test_pairs_of_a_file(tmp_path):
    with gzip.open(tmp_path / "blimp.jsonl.gz", "wt") as file:
        file.write(BLIMP)
    (tmp_path / "own.csv").write_text("sentence_bad,sentence_good\nbad,good\n")
    paths = [str(tmp_path / name) for name in ("blimp.jsonl.gz", "own.csv")]
    pairs = read_pairs(paths)
    assert pairs[0] == Pair("a", "b", "one", "binding") and len(pairs) == 5
    assert pairs[-1] == Pair("good", "bad", "own", "own")


def test_only_some_of_them_count(tmp_path):
    (tmp_path / "b.jsonl").write_text(BLIMP)
    only = tmp_path / "only.json.gz"
    only.write_bytes(gzip.compress(json.dumps({"one": [1], "three": ["0"]}).encode()))
    pairs = read_pairs([str(tmp_path / "b.jsonl")], str(only))
    assert [pair.good for pair in pairs] == ["c", "g"]
    only.write_text('{"one": [1, 2], "four": [0]}')
    with pytest.raises(FirthError, match=r"lists 2 pairs that .*b\.jsonl does not have, such as"):
        read_pairs([str(tmp_path / "b.jsonl")], str(only))


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("[1]", "expected {paradigm"), ('{"one": 1}', "expected"), ("{}", "no")],
)
def test_a_list_that_is_none(tmp_path, text, said):
    (tmp_path / "b.jsonl").write_text(BLIMP)
    (tmp_path / "only.json").write_text(text)
    with pytest.raises(FirthError, match=said):
        read_pairs([str(tmp_path / "b.jsonl")], str(tmp_path / "only.json"))


def test_shares_are_means_over_paradigms():
    kinds = [("one", "binding")] * 4 + [("two", "binding"), ("three", "islands")]
    pairs = [Pair("", "", *kind) for kind in kinds]
    good = np.array([1.0, 0, 0, 0, 1, 0])
    bad = np.array([0.0, 1, 1, 0, 0, 1])
    found = judge(pairs, np.stack([good, bad], axis=1))
    assert found.paradigms == {"one": 0.375, "three": 0.0, "two": 1.0}
    assert found.phenomena == {"binding": 0.6875, "islands": 0.0}
    assert found.mean == pytest.approx(1.375 / 3) and found.ties == pytest.approx(1 / 6)
    shown = table({"kn": found, "bert": judge(pairs, np.stack([bad, good], axis=1), True)})
    lines = [line.split() for line in shown.splitlines()]
    assert lines[0] == ["kn", "bert", "*"] and lines[1] == ["binding", "68.8", "31.2"]
    assert lines[3] == ["mean", "of", "3", "paradigms", "45.8", "54.2"]
    assert "6 pairs; guessing has 50.0" in shown and "pseudo-log-likelihood" in shown


def test_a_model_of_frequencies_ties_on_another_order(place):
    words = ["the", "cat", "sat", "on", "the", "mat", "to", "a", "dog", "ran"]
    rng = np.random.default_rng(0)
    pairs = [Pair(*(" ".join(rng.permutation(words)) for _ in "ab"), "o", "o") for _ in range(60)]
    found = totals(load_model(place / "ngram1"), pairs)
    assert (found[:, 0] == found[:, 1]).all() and found[0, 0] < -10
    followed = totals(load_model(place / "ngram2"), pairs)
    assert (followed[:, 0] != followed[:, 1]).mean() > 0.9


@pytest.mark.parametrize("name", ["ngram2", "rnn", "gpt2", "bert"])
def test_every_kind_of_model_scores_them(place, capsys, name):
    """The sums are those of `firth score`, and the command says who is right."""
    capsys.readouterr()
    argv = ["evaluate", f"--models={place}/{name}", f"--pairs={place}/pairs.jsonl", "--json"]
    assert cli.main([*argv, f"--output={place}/{name}.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out)[name]
    lines = [json.loads(line) for line in (place / f"{name}.jsonl").read_text().splitlines()]
    model = load_model(place / name)
    for line, texts in zip(lines, PAIRS, strict=True):
        assert (line["good"], line["bad"], line["paradigm"]) == (*texts, "pairs")
        own = [scored.total for scored in firth.inference.score.score(model, texts)]
        np.testing.assert_allclose(line["scores"][name], own, rtol=1e-5)
    good, bad = np.array([line["scores"][name] for line in lines]).T
    assert found["mean"] == ((good > bad).sum() + 0.5 * (good == bad).sum()) / 3
    assert found["ties"] == (good == bad).mean() >= 1 / 3
    assert found["pseudo"] == (name == "bert")


def test_a_sentence_that_is_too_long_is_named(place, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps(dict(sentence_good="a", sentence_bad="the cat " * 40)))
    pairs = read_pairs([str(path)])
    with pytest.raises(FirthError, match=r"sentence_bad 'the cat .* has 81 tokens"):
        totals(firth.load(place / "gpt2"), pairs)
