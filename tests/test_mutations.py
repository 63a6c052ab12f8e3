"""The list of mutations fits the sources, and who runs it is told the truth."""

import collections
import subprocess

import mutate
import pytest
from helpers.mutations import ROOMS, ListError, Mutation, check, read_lists


@pytest.fixture(scope="module")
def listed():
    return read_lists()


def test_every_mutation_fits_its_file_and_names_tests_that_exist(listed):
    for one in listed:
        check(one)


def test_there_are_enough_in_every_room(listed):
    counts = collections.Counter(one.room for one in listed)
    assert len(set(listed)) == len(listed) >= 200
    assert set(counts) == set(ROOMS) and min(counts.values()) >= 10


def test_reasons_to_survive_are_few_and_are_sentences(listed):
    reasons = [one.survives for one in listed if one.survives]
    assert len(reasons) <= len(listed) / 20
    assert all(len(reason.split()) >= 5 for reason in reasons)


SOURCE = "def double(x):\n    y = 2 * x\n    return y + 0\n"
TESTS = "from small import double\n\ndef test_it():\n    assert double(3) == 6\n"


@pytest.fixture
def small(tmp_path):
    """A checkout of one function with one test."""
    files = {"src/small.py": SOURCE, "tests/test_small.py": TESTS, ".gitignore": "*.pyc\n"}
    for name, text in files.items():
        (tmp_path / "small" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "small" / name).write_text(text)
    subprocess.run(["git", "init", "-q", tmp_path / "small"], check=True)
    return tmp_path / "small"


def mutation(old, new, test="tests/test_small.py::test_it", **fields):
    return Mutation("training", "src/small.py", old, new, (test,), **fields)


def test_killed_and_survived_are_told_apart_and_what_was_killed_is_not_run_again(small, tmp_path):
    seen, unseen = mutation("2 * x", "3 * x"), mutation("y + 0", "y - 0", survives="no difference")
    broken_import = mutation("def double", "def treble")
    path, said = tmp_path / "results.jsonl", []

    def hear(line, done):
        said.append(line)

    def run(*mutations):
        said.clear()
        results = mutate.Results(path, small)
        return mutate.run_all(mutations, results=results, root=small, tell=hear)

    first = run(seen, unseen, broken_import)
    assert [o.state for o in first.values()] == ["killed", "survived", "killed"]
    assert first[seen].seen_by == "tests/test_small.py::test_it"
    assert (small / "src" / "small.py").read_text() == SOURCE
    (training, total, *rest) = mutate.table(first)[1:]
    assert training.split() == ["training", "2", "1", "1"] and total.split()[1:] == ["2", "1", "1"]
    assert rest == ["survived: src/small.py: y + 0 -> y - 0 (no difference)"]
    assert run(seen) == {seen: first[seen]} and said == ["1 were killed before"]
    (small / "tests" / "test_small.py").write_text(TESTS.replace("3) == 6", "0) == 0"))
    assert run(seen)[seen].state == "survived", "its tests have changed"


def test_tests_that_fail_without_it_say_nothing(small):
    (small / "tests" / "test_small.py").write_text(TESTS.replace("== 6", "== 7"))
    results = mutate.Results(None, small)
    tripled = mutation("2 * x", "3 * x")
    outcome = mutate.run_all([tripled], results=results, root=small, tell=print)[tripled]
    assert outcome.state == "broken" and "fails on the sound sources" in outcome.seen_by


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (mutation("x", "z"), "occurs 2 times"),
        (mutation("4 * x", "z"), "occurs 0 times"),
        (mutation("2 * x", "2 * x"), "expected one line, and another one"),
        (mutation("2 * x", "2 * (x"), "does not compile"),
        (mutation("2 * x", "3 * x", "tests/test_big.py"), "there is no tests/test_big.py"),
        (mutation("2 * x", "3 * x", "tests/test_small.py::test_that"), "has no test test_that"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(small, wrong, said):
    with pytest.raises(ListError, match=said):
        check(wrong, small)
