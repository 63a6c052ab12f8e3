"""Minimal pairs: of two sentences that differ in one point, does a model prefer the right one?

    firth evaluate --models runs/kn5,runs/bert --pairs blimp.jsonl.gz

Each line of a file has `sentence_good` and `sentence_bad`, and may say its `UID` (the paradigm),
`linguistics_term` (the phenomenon) and `pairID`, as in BLiMP (Warstadt et al. 2020). N pairs.
"""

import gzip
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from firth.data.tasks.rows import Rows
from firth.errors import FirthError
from firth.inference.score import BATCH_SIZE, score
from firth.progress import Progress

log = logging.getLogger("firth")

COLUMNS = ("sentence_good", "sentence_bad")
CHUNK = 2048  # sentences between two signs of progress
# The field that some paradigms of BLiMP have -> its phenomenon in the paper's tables, which count
# 12 where the files have 13.
PHENOMENA = {"s-selection": "argument_structure"}
ALL = "all"  # for `only`: no list
# The pairs of BLiMP that the BabyLM challenge counts: those whose words are in its training text.
FILTERS = ("babylm_filtered_pair_ids.json", "babylm_filtered_pair_ids.json.gz")


@dataclass(frozen=True)
class Pair:
    """Two sentences, and what they test: the paradigm is one of those of a phenomenon.

    counts: whether it counts in figures that are not of the whole.
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    counts: bool = True


def read_pairs(paths: Sequence[str], only: str | None = None) -> list[Pair]:
    """The pairs of JSONL, CSV or TSV files, also packed.

    Args:
      paths: the files. A row without a `UID` belongs to the paradigm of the file's name, and one
        without a `linguistics_term` to the phenomenon of its paradigm's name. BLiMP's
        "s-selection" is argument structure, as in the paper's table.
      only: a JSON file {paradigm: [pairID, ...]}, also .gz; all other pairs are left out. None is
        the list of the BabyLM challenge, if it lies beside a file and has pairs of it: the other
        pairs of its paradigms then do not count (`Pair.counts`). "all" is no list.

    Raises FirthError, naming file and line, for a malformed row, for pairs of `only` that no file
    has, for a file that is named twice, and where no pair is left.
    """
    places = [Path(path).resolve() for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise FirthError(f"--pairs names {path} twice; expected each file once")
    wanted = None if only in (None, ALL) else _listed(only)
    found, numbers, pairs = set(), [], []
    for path in paths:
        name = Path(path).name.split(".")[0]
        for row in Rows(path, COLUMNS, option="--pairs"):
            paradigm = str(row.fields.get("UID") or name)
            number = (paradigm, str(row.fields.get("pairID")))
            found.add(number)
            if wanted is None or number in wanted:
                numbers.append(number)
                phenomenon = str(row.fields.get("linguistics_term") or paradigm)
                pairs.append(Pair(*row.text, paradigm, PHENOMENA.get(phenomenon, phenomenon)))
    if missing := (wanted or set()) - found:
        paradigm, number = min(missing)
        raise FirthError(
            f"--only {only} lists {len(missing):,} pairs that {', '.join(paths)} does not have, "
            f"such as pairID {number} of {paradigm}; expected the list of these pairs"
        )
    if not pairs:
        raise FirthError(f"--only {only} lists no pair")
    return _filtered(pairs, numbers, paths) if only is None else pairs


def _filtered(pairs: list[Pair], numbers: list[tuple[str, str]], paths) -> list[Pair]:
    """The pairs, of which those count that BabyLM's list beside a file has, if there is one."""
    beside = [Path(path).parent / name for path in paths for name in FILTERS]
    for path in filter(Path.is_file, beside):
        wanted = _listed(str(path))
        if wanted.isdisjoint(numbers):  # of another file in the folder
            continue
        paradigms = {paradigm for paradigm, _ in wanted}
        pairs = [
            replace(pair, counts=number in wanted or number[0] not in paradigms)
            for pair, number in zip(pairs, numbers, strict=True)
        ]
        log.info(
            "%s: %s of %s pairs count (--only all counts all)",
            path,
            f"{sum(pair.counts for pair in pairs):,}",
            f"{len(pairs):,}",
        )
        break
    return pairs


def _listed(path: str) -> set[tuple[str, str]]:
    """{(paradigm, pairID)} of a JSON file."""
    try:
        data = Path(path).read_bytes()
        lists = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise FirthError(f"--only {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise FirthError(f"--only {path} is no JSON: {error}") from None
    if not isinstance(lists, dict) or not all(isinstance(ids, list) for ids in lists.values()):
        raise FirthError(f"--only {path}: expected {{paradigm: [pairID, ...]}}")
    return {(paradigm, str(number)) for paradigm, ids in lists.items() for number in ids}


def totals(
    model,
    pairs: Sequence[Pair],
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
    *,
    within_word: bool = False,
    pseudo: bool = False,
    end: bool = False,
) -> np.ndarray:
    """float64 [N, 2]: the scores of the good and of the bad sentences, in nats.

    A score is the sum over a sentence's tokens (`firth.inference.score.score`, which says what
    `within_word`, `pseudo` and `end` do). The sum of float32 values in float64 does not depend on
    their order: two orders of the same words tie where a model has no context. A sentence that
    occurs several times is scored once. `progress` shows how many sentences are scored.
    """
    names = {}
    for pair in pairs:
        for kind, text in zip(COLUMNS, (pair.good, pair.bad), strict=True):
            names.setdefault(text, f"{kind} {text!r:.60}")
    texts, found = list(names), {}
    for begin in range(0, len(texts), CHUNK):
        some = texts[begin : begin + CHUNK]
        scored = score(
            model,
            some,
            end=end,
            within_word=within_word,
            pseudo=pseudo,
            batch_size=batch_size,
            names=[names[text] for text in some],
        )
        found |= {text: one.total for text, one in zip(some, scored, strict=True)}
        if progress:
            progress.update(begin + len(some), "sentences")
    return np.array([(found[pair.good], found[pair.bad]) for pair in pairs]).reshape(-1, 2)


def sentences(pairs: Sequence[Pair]) -> int:
    """How many different sentences the pairs have."""
    return len({text for pair in pairs for text in (pair.good, pair.bad)})
