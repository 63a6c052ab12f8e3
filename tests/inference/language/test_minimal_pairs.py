"""Minimal pairs: reading them, scoring them with every kind of model, and counting."""

import gzip
import json

import jax
import numpy as np
import pytest

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference.language.minimal_pairs import Pair, read_pairs, sentences, totals
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
    "xlnet": ("lm", dict(num_heads=2, intermediate_size=24)),
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
        own, path = (pieces, "pieces") if family in ("bert", "xlnet") else (tokenizer, "tok")
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
    ("four", "s-selection", "0", "i", "j"),
)


def test_pairs_of_a_file(tmp_path):
    with gzip.open(tmp_path / "blimp.jsonl.gz", "wt") as file:
        file.write(BLIMP)
    (tmp_path / "own.csv").write_text("sentence_bad,sentence_good\nbad,good\n")
    paths = [str(tmp_path / name) for name in ("blimp.jsonl.gz", "own.csv")]
    pairs = read_pairs(paths)
    assert pairs[0] == Pair("a", "b", "one", "binding") and len(pairs) == 6
    assert pairs[4].phenomenon == "argument_structure"  # as in the paper
    assert pairs[-1] == Pair("good", "bad", "own", "own")


def test_only_some_of_them_count(tmp_path):
    (tmp_path / "b.jsonl").write_text(BLIMP)
    only = tmp_path / "only.json.gz"
    only.write_bytes(gzip.compress(json.dumps({"one": [1], "three": ["0"]}).encode()))
    pairs = read_pairs([str(tmp_path / "b.jsonl")], str(only))
    assert [pair.good for pair in pairs] == ["c", "g"]
    only.write_text('{"one": [1, 2], "five": [0]}')
    with pytest.raises(FirthError, match=r"lists 2 pairs that .*b\.jsonl does not have, such as"):
        read_pairs([str(tmp_path / "b.jsonl")], str(only))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_babylms_list_beside_them_says_which_count(tmp_path, caplog, suffix):
    paths = [str(tmp_path / name) for name in ("b.jsonl", "own.csv")]
    (tmp_path / "b.jsonl").write_text(BLIMP)
    (tmp_path / "own.csv").write_text("sentence_bad,sentence_good\nbad,good\n")
    lists = json.dumps({"one": [1], "two": [0], "three": ["0"], "four": [0]}).encode()
    place = tmp_path / f"babylm_filtered_pair_ids.json{suffix}"
    place.write_bytes(gzip.compress(lists) if suffix else lists)
    with caplog.at_level("INFO"):
        pairs = read_pairs(paths)
    assert [pair.good for pair in pairs if not pair.counts] == ["a"] and len(pairs) == 6
    assert f"{place}: 5 of 6 pairs count (--only all counts all)" in caplog.text
    assert all(pair.counts for pair in read_pairs(paths, "all"))
    given = read_pairs(paths, str(place))  # these and no others
    assert [pair.good for pair in given] == ["c", "e", "g", "i"]
    assert all(pair.counts for pair in given)
    assert all(pair.counts for pair in read_pairs(paths[1:]))  # the list is of another file
    (tmp_path / "part.jsonl").write_text("".join(BLIMP.splitlines(keepends=True)[:2]))
    assert [pair.counts for pair in read_pairs([str(tmp_path / "part.jsonl")])] == [False, True]


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("[1]", "expected {paradigm"), ('{"one": 1}', "expected"), ("{}", "no")],
)
def test_a_list_that_is_none(tmp_path, text, said):
    (tmp_path / "b.jsonl").write_text(BLIMP)
    (tmp_path / "only.json").write_text(text)
    with pytest.raises(FirthError, match=said):
        read_pairs([str(tmp_path / "b.jsonl")], str(tmp_path / "only.json"))


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
    total = found["total"]
    assert total["share"] == ((good > bad).sum() + 0.5 * (good == bad).sum()) / 3
    assert total["ties"] == (good == bad).sum() >= 1 and total["pairs"] == 3
    assert found["kind"] == ("pseudo" if name == "bert" else "causal")


def test_a_sentence_is_scored_once(place):
    """In whatever pair it is, however many of them a chunk has."""
    pairs = [Pair(good, bad, "o", "o") for good, _ in PAIRS for _, bad in PAIRS] * 2
    shown = []

    class Bar:
        def update(self, count, unit):
            shown.append((count, unit))

    found = totals(load_model(place / "rnn"), pairs, progress=Bar())
    assert shown == [(5, "sentences")] and sentences(pairs) == 5
    np.testing.assert_array_equal(found[:9], found[9:])
    for column in (0, 1):
        own = [
            scored.total
            for scored in firth.inference.score.score(
                load_model(place / "rnn"), [texts[column] for texts in PAIRS]
            )
        ]
        rows = found[:9, column].reshape(3, 3)
        np.testing.assert_allclose(rows[:, 0] if column == 0 else rows[0], own, rtol=1e-5)


def test_each_option_where_a_model_has_it(place, capsys):
    """In one command a masked model masks whole words, and XLNet too, where it reads both sides;
    a causal model scores the ends.
    """
    models = ",".join(f"{place}/{name}" for name in ("rnn", "bert", "xlnet"))
    argv = ["evaluate", f"--models={models}", f"--pairs={place}/pairs.jsonl", "--end"]
    output = place / "options.jsonl"
    assert cli.main([*argv, f"--output={output}", "--within-word", "--pseudo", "--json"]) == 0
    kinds = {name: one["kind"] for name, one in json.loads(capsys.readouterr().out).items()}
    masked = "pseudo, within words"
    assert kinds == {"rnn": "causal", "bert": masked, "xlnet": masked}
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    options = {"rnn": dict(end=True), "bert": dict(within_word=True)}
    options["xlnet"] = dict(within_word=True, pseudo=True)
    for name, option in options.items():
        model = load_model(place / name)
        for line, texts in zip(lines, PAIRS, strict=True):
            own = [one.total for one in firth.inference.score.score(model, texts, **option)]
            np.testing.assert_allclose(line["scores"][name], own, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "option", "said"),
    [
        ("rnn", "--within-word", "--within-word is for masked models, and --models has none"),
        ("xlnet", "--within-word", "--within-word is for masked models, and --models has none"),
        ("bert", "--pseudo", "--pseudo is for permutation models, and --models has none"),
        ("bert", "--end", "--end is for causal models, and --models has none"),
        ("rnn", "--output=table.txt", "--output ends in .txt; expected .jsonl for the pairs"),
    ],
)
def test_options_that_fit_no_model(place, capsys, name, option, said):
    argv = ["evaluate", f"--models={place}/{name}", f"--pairs={place}/pairs.jsonl", option]
    assert cli.main(argv) == 2
    assert said in capsys.readouterr().err


def test_a_sentence_that_is_too_long_is_named(place, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps(dict(sentence_good="a", sentence_bad="the cat " * 40)))
    pairs = read_pairs([str(path)])
    with pytest.raises(FirthError, match=r"sentence_bad 'the cat .* has 81 tokens"):
        totals(firth.load(place / "gpt2"), pairs)
