"""Questions with choices for tests: files, RACE's folders, and an encoder for them."""

import csv
import json

import jax
import numpy as np

from firth.models.model import create
from firth.tokenizers.load import train_tokenizer
from firth.weights.description import complete_spec
from firth.weights.read import Saved
from firth.weights.write import write_firth

SIZES = dict(num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64, max_length=48)
TOWNS = {"Ann": "Oslo", "Bob": "Rome", "Eve": "Lima", "Dan": "Bern", "Ida": "Kyoto"}


def towns(count=10):
    """Rows of questions whose answer stands in their context: a town among three."""
    names, rng = list(TOWNS), np.random.default_rng(0)
    rows = []
    for i in range(count):
        name = names[i % len(names)]
        others = [town for town in TOWNS.values() if town != TOWNS[name]]
        label = int(rng.integers(3))
        choices = [*rng.permutation(others)[:2]]
        choices.insert(label, TOWNS[name])
        rows.append(
            {
                "context": f"{name} number {i} lives in {TOWNS[name]} by the river.",
                "question": f"Where does {name} live?",
                "choices": [str(choice) for choice in choices],
                "label": label,
            }
        )
    return rows


def write_jsonl(path, rows):
    """A question a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path, rows, name="ending"):
    """A question a line, a column for each choice."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        count = len(rows[0]["choices"])
        writer.writerow(["sent1", "sent2", *(f"{name}{i}" for i in range(count)), "label"])
        writer.writerows(
            [row["context"], row["question"], *row["choices"], row["label"]] for row in rows
        )
    return path


def write_race(folder, level, number, questions, options, answers, article="A text."):
    """A passage in RACE's layout."""
    (folder / level).mkdir(parents=True, exist_ok=True)
    passage = {"article": article, "questions": questions, "options": options, "answers": answers}
    (folder / level / f"{number}.txt").write_text(json.dumps(passage))


def random_encoder(folder):
    """A Firth directory of a small BERT with random weights, and its tokenizer."""
    texts = [text for row in towns() for text in (row["context"], row["question"])]
    tokenizer = train_tokenizer("wordpiece", texts * 3, 150)
    tokenizer.save(folder / "tok")
    spec = complete_spec({"family": "bert", "vocab_size": tokenizer.vocab_size} | SIZES, "")
    params = create(spec, ()).init(jax.random.key(0), np.zeros((1, 8), np.int32))["params"]
    files = (jax.device_get(params), folder, "firth", ("float32",), folder / "tok")
    write_firth(folder / "encoder", Saved(spec, (), 2, None, False, *files))
    return folder / "encoder"
