"""Counting minimal pairs, and the tables of the counts."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest

from firth.errors import FirthError
from firth.inference.language.minimal_pairs import Pair
from firth.inference.language.pair_tables import Tally, as_json, judge, records, table, written

KINDS = [("one", "binding")] * 4 + [("two", "binding"), ("three", "islands")]
PAIRS = [Pair("é", "b", *kind) for kind in KINDS]
SCORES = np.array([[1.0, 0], [0, 1], [0, 1], [0, 0], [1, 0], [0, 1]])


@pytest.fixture
def judged():
    return {"kn": judge(PAIRS, SCORES), "bert": judge(PAIRS, SCORES[:, ::-1], "pseudo")}


def test_shares_are_means_over_paradigms(judged):
    found = judged["kn"]
    one = Tally(4, 1, 0.375, math.sqrt(np.var([1, 0, 0, 0.5]) / 4))
    assert found.paradigms == {
        "one": one,
        "three": Tally(1, 0, 0.0, 0.0),
        "two": Tally(1, 0, 1.0, 0.0),
    }
    assert found.phenomena["binding"] == Tally(5, 1, 0.6875, one.error / 2)
    assert found.phenomena["islands"] == Tally(1, 0, 0.0, 0.0)
    assert found.total.share == pytest.approx(1.375 / 3) and found.total.ties == 1
    assert found.total.error == pytest.approx(one.error / 3) and found.total.pairs == 6


def test_pairs_that_do_not_count_are_in_the_whole_alone(judged):
    """Also those of a paradigm that has no other, and of a phenomenon that has no other."""
    more = [*PAIRS, Pair("a", "b", "one", "binding", False), Pair("a", "b", "four", "npi", False)]
    found = judge(more, np.concatenate([SCORES, [[0, 0], [1, 0]]]))
    wanted, whole = judged["kn"], found.whole
    assert wanted.whole is None
    assert dataclasses.replace(found, whole=None) == wanted
    share = 2 / 5  # of "one": right, wrong, wrong, a tie and another tie
    assert whole.share == pytest.approx((share + 0 + 1 + 1) / 4)
    assert (whole.pairs, whole.ties) == (8, 2)
    line = table({"kn": found}).splitlines()[6]
    assert line.split() == ["all", "8", "pairs", f"{100 * whole.share:.1f}"]
    assert "6 pairs; guessing has 50.0" in table({"kn": found})
    assert "all 8" not in table(judged)
    last = records({"kn": found})[-1]
    assert (last["level"], last["share"]) == ("whole", whole.share)
    assert json.loads(as_json({"kn": found}))["kn"]["whole"]["pairs"] == 8


def test_the_error_is_that_of_many_samples():
    """The standard deviation of the mean over paradigms when pairs are drawn again and again."""
    rng = np.random.default_rng(0)
    chances = {"a": (0.9, 20), "b": (0.5, 50)}
    pairs = [Pair("", "", name, name) for name, (_, n) in chances.items() for _ in range(n)]
    p = np.concatenate([[chance] * n for chance, n in chances.values()])
    found = []
    for _ in range(2000):
        right = rng.random(len(p)) < p
        found.append(judge(pairs, np.stack([right, ~right], axis=1)).total)
    errors = np.sqrt(np.mean([total.error**2 for total in found]))
    assert errors == pytest.approx(np.std([total.share for total in found]), rel=0.08)


def test_the_table_has_a_column_a_model(judged):
    lines = [line.split() for line in table(judged).splitlines()]
    assert lines[0] == ["kn", "bert", "*"] and lines[1] == ["binding", "68.8", "31.2"]
    assert lines[3] == ["mean", "of", "3", "paradigms", "45.8", "54.2"]
    error = f"{100 * judged['kn'].total.error:.1f}"
    assert lines[4] == ["its", "standard", "error", error, error]
    assert lines[5] == ["ties,", "each", "one", "half", "16.7", "16.7"]
    assert "6 pairs; guessing has 50.0" in table(judged)
    assert table(judged).count("* pseudo-log-likelihood") == 1
    rtd = table({"electra": judge(PAIRS, SCORES, "discriminator")})
    assert "electra +" in rtd and "+ log P(original)" in rtd and "pseudo" not in rtd


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".tsv", "\t")])
def test_a_file_of_the_table(judged, suffix, delimiter):
    text = written(suffix, judged, PAIRS, {})
    rows = list(csv.DictReader(text.splitlines(), delimiter=delimiter))
    assert len(rows) == len(records(judged)) == 2 * (3 + 2 + 1)
    assert [row["level"] for row in rows[:6]] == ["paradigm"] * 3 + ["phenomenon"] * 2 + ["mean"]
    assert rows[0] == dict(
        model="kn",
        kind="causal",
        level="paradigm",
        name="one",
        pairs="4",
        ties="1",
        share="0.375",
        error=str(judged["kn"].paradigms["one"].error),
    )
    assert rows[-1]["model"] == "bert" and float(rows[-1]["share"]) == judged["bert"].total.share


def test_files_of_json(judged):
    found = json.loads(written(".json", judged, PAIRS, {}))
    assert found == json.loads(as_json(judged))
    assert found["kn"]["phenomena"]["islands"] == dict(pairs=1, ties=0, share=0.0, error=0.0)
    scores = {"kn": SCORES, "bert": SCORES[:, ::-1]}
    lines = written(".jsonl", judged, PAIRS, scores).splitlines()
    assert json.loads(lines[1]) == dict(
        good="é",
        bad="b",
        paradigm="one",
        phenomenon="binding",
        counts=True,
        scores={"kn": [0.0, 1.0], "bert": [1.0, 0.0]},
    )
    assert len(lines) == 6 and "é" in lines[0]


def test_a_file_of_another_kind(judged):
    with pytest.raises(FirthError, match=r"--output ends in nothing; expected \.jsonl"):
        written("", judged, PAIRS, {})
