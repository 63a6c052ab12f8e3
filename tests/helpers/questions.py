"""Small files of questions in SQuAD's JSON."""

import json
from pathlib import Path

TOWNS = {"Ann": "Oslo", "Bob": "Rome", "Eve": "New York", "Dan": "Lima", "Ida": "Bern"}


def asked(number: str, question: str, context: str, *answers: str, **more) -> dict:
    """A question whose answers stand in its context, at their first place there."""
    found = [{"text": text, "answer_start": context.index(text)} for text in answers]
    return {"id": number, "question": question, "answers": found, **more}


def squad(*paragraphs: tuple[str, list[dict]]) -> dict:
    """The JSON of (context, questions)."""
    entries = [{"context": context, "qas": qas} for context, qas in paragraphs]
    return {"version": "x", "data": [{"title": "t", "paragraphs": entries}]}


def towns(unanswerable: bool = False) -> dict:
    """Who lives where: a question for each of five people on one text of a sentence each.

    With `unanswerable` the text of each also gets a question on somebody else.
    """
    paragraphs = []
    people = list(TOWNS)
    for n, (person, town) in enumerate(TOWNS.items()):
        context = f"In {2000 + n} {person} lived in {town} by the sea."
        qas = [asked(f"{person}-1", f"Where did {person} live?", context, town)]
        qas.append(asked(f"{person}-2", "Who lived by the sea?", context, person))
        if unanswerable:
            other = people[(n + 1) % len(people)]
            qas.append(asked(f"{person}-3", f"Where did {other} live?", context))
        paragraphs.append((context, qas))
    return squad(*paragraphs)


def write(path: Path, whole: dict) -> Path:
    """Write a file of questions."""
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path
