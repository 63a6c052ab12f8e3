"""docs/extending.md: its files are written, its commands run, in its order."""

import json
import random
import sys
from pathlib import Path

import pytest
from helpers.pages import run_page

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "bird",
    "sat",
    "ran",
    "flew",
    "on",
    "under",
    "over",
    "mat",
    "hill",
    "river",
    "and",
    "then",
    "it",
    "was",
    "glad",
    "sad",
]
STEPS = 10


def text(seed: int, documents: int) -> str:
    """Documents of random sentences."""
    rng = random.Random(seed)
    sentence = lambda: " ".join(rng.choices(WORDS, k=rng.randint(4, 9))) + "."  # noqa: E731
    return "\n\n".join(" ".join(sentence() for _ in range(8)) for _ in range(documents)) + "\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with a corpus and labels, as the current one; its modules are forgotten."""
    (tmp_path / "corpus.txt").write_text(text(0, 40))
    rows = [f"{'it was ' + mood},{mood}" for mood in ("glad", "sad") for _ in range(8)]
    (tmp_path / "moods.csv").write_text("\n".join(["text,mood", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def journal(workdir: Path) -> list[dict]:
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_the_page_does_what_it_says(folder):
    run_page(PAGE, folder, extra)
    runs = {path.name: journal(path) for path in (folder / "runs").iterdir()}
    assert runs.keys() == {"moved", "head", "sentences", "moods", "fnet", "watched"}
    assert all(lines[-1]["step"] == STEPS for lines in runs.values())
    final = {name: lines[-1] for name, lines in runs.items()}
    assert 0 < final["moved"]["eval/heldout/moved_loss"] < 2
    assert "eval/heldout/mlm_loss" in final["sentences"] and "eval/dev/f1" in final["moods"]
    assert [line["step"] for line in runs["watched"] if "eval/norms/encoder" in line] == [5, 10]
    assert "norms/encoder" in json.loads((folder / "runs/watched/evaluation.json").read_text())


def extra(argv: list[str]) -> list[str]:
    """What makes a command small enough for a test."""
    small = ["--config.progress=False", "--config.data.loader=thread", "--config.log_every=10"]
    return small if argv[0] == "train" else []
