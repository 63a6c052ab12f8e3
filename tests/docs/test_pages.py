"""Every block of the pages runs, in its order: in one folder, on small texts and with few steps."""

import csv
import json
import random
import re
import shutil
from pathlib import Path

import jax
import pytest
from helpers.cases import nightly
from helpers.pages import run, run_page
from helpers.published.bert import make_thin_minilm

from firth.recipe import OWN_RUNS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("index", "pretrain", "finetune", "predict", "adapt", "vectors", "look", "recipes")
PAGES += ("devices", "storage", "plan", "lineage", "questions", "choices", "glue")
NIGHTLY = ("index", "pretrain", "adapt", "devices", "lineage", "questions", "choices")
README = "README"  # runs on what the quick start left
# Pages without a command that is to be run here; the blocks of the last two run elsewhere.
READ = ("coming-from", "results", "errors", "map", "departures", "api", "tpu", "extending")
OWN = ("maxent", *OWN_RUNS)  # recipes without the fields of the loop
FOLLOWS = {"predict": "finetune"}  # in whose folder it goes on
NOUNS, VERBS = ("cat", "dog", "vase", "bird", "river"), ("broke", "sat", "ran", "sang")


def sentence(rng: random.Random) -> str:
    return f"The {rng.choice(NOUNS)} {rng.choice(VERBS)} on the {rng.choice(NOUNS)}."


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder in which a reader of the pages works: a corpus, labels, new texts, a MiniLM."""
    folder, rng = tmp_path_factory.mktemp("pages") / "reader", random.Random(0)
    make_thin_minilm(folder / "minilm")
    documents = [" ".join(sentence(rng) for _ in range(12)) for _ in range(60)]
    (folder / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    lines = [sentence(rng) for _ in range(400)]
    for name, part in (
        ("train.txt", lines[:320]),
        ("test.txt", lines),
        ("sentences.txt", lines[:8]),
    ):
        (folder / name).write_text("\n".join(part) + "\n")
    write_labels(folder / "train.csv", 40)
    write_labels(folder / "test.csv", 12)
    (folder / "new.csv").write_text('id,text\n17,"A waste of time, and of talent."\n18,A joy.\n')
    return folder


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Programs that several pages need are compiled once."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    values = (str(tmp_path_factory.mktemp("compiled")), 0.5)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(names, values, strict=True):
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
    for name, value in before.items():
        jax.config.update(name, value)


def write_labels(path: Path, count: int):
    rng = random.Random(count)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(count):
            label = ("negative", "positive")[number % 2]
            what = ("It", "The film", "She")[number % 3]
            writer.writerow([f"{sentence(rng)} {what} was {label} {number}.", label])


def extra(argv: list[str]) -> list[str]:
    """What makes a command small enough for a test; the last of two values counts."""
    verb, whole = argv[0], " ".join(argv)
    if verb == "prepare" and "--vocab-size" in whole:
        return ["--vocab-size=150"] if "--train-tokenizer word " not in f"{whole} " else []
    if verb != "train" or "--config" not in whole or any(f"{n}.py" in whole for n in OWN):
        return []
    fields = {"batch_size": 8, "eval.batch_size": 8, "log_every": 2, "progress": False}
    fields |= {"data.loader": "thread"}
    if "finetune.py" in whole or "ulmfit.py:classifier" in whole:
        fields |= {"data.length": 32}  # one length to compile
    elif not any(name in whole for name in ("tagger.py", "squad.py")):
        fields |= {"steps": 6, "eval.batches": 1, "eval.every": 3}
        fields |= {"data.heldout": 0.2} if "data.heldout=0.0" not in whole else {}
        fields |= {"until": 4} if "until=" in whole else {}
        fields |= {"data.length": 32} if "length=" not in whole else {}
    return [f"--config.{name}={value}" for name, value in fields.items()]


def test_every_page_is_run_or_named_as_one_to_read():
    assert {path.stem for path in DOCS.glob("*.md")} == {*PAGES, *READ}
    for name in set(READ) - {"tpu", "extending"}:
        assert "```sh" not in (DOCS / f"{name}.md").read_text(), name


def test_the_navigation_names_every_page():
    named = re.findall(r": ([\w-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted({*PAGES, *READ})


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [nightly(name) if name in NIGHTLY else name for name in (README, *PAGES)],
)
def test_the_page_does_what_it_says(folder, monkeypatch, capsys, name):
    place = folder.parent / FOLLOWS.get(name, name)
    if name not in FOLLOWS:
        shutil.copytree(folder, place)
    monkeypatch.chdir(place)
    if name == "finetune":  # its file makes thousands of rows
        monkeypatch.setattr("helpers.pages.run", shrink)
    page = DOCS / f"{name}.md"
    if name == README:
        page = ROOT / "README.md"
        shutil.rmtree(place / "minilm")  # here the published weights
        make_quickstart(place)
    commands = run_page(page, place, extra)
    assert len(commands) >= 1
    if name == "predict":
        head = (place / "labelled.csv").read_text().splitlines()[0]
        assert head == "id,text,label,p_negative,p_positive"


def make_quickstart(place: Path):
    """The files that the quick start leaves."""
    data = place / "quickstart" / "data"
    data.mkdir(parents=True)
    for source, name in {"train": "snippets-train", "test": "snippets-dev"}.items():
        shutil.copy(place / f"{source}.csv", data / f"{name}.csv")
    reviews = (place / "corpus.txt").read_text().split("\n\n")
    (data / "reviews.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in reviews))
    shutil.copy(ROOT / "README.md", place)


def shrink(line: str, extra):
    """Run a line; the labels that the page's own file makes are too many for a test."""
    run(line, extra)
    if line == "python snippets.py":
        assert len(Path("train.csv").read_text().splitlines()) > 500
        write_labels(Path("train.csv"), 40)
        write_labels(Path("test.csv"), 12)
