"""Minimal pairs: of two sentences that differ in one point, does a model prefer the right one?

    firth evaluate --models runs/kn5,runs/bert --pairs blimp.jsonl.gz --only filtered.json.gz

Each line of a file has `sentence_good` and `sentence_bad`, and may say its `UID` (the paradigm),
`linguistics_term` (the phenomenon) and `pairID`, as in BLiMP (Warstadt et al. 2020). N pairs.
"""

import collections
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.data.tasks.rows import Rows
from firth.errors import FirthError
from firth.inference.score import BATCH_SIZE, score
from firth.progress import Progress

COLUMNS = ("sentence_good", "sentence_bad")
CHUNK = 512  # pairs between two signs of progress


@dataclass(frozen=True)
class Pair:
    """Two sentences, and what they test."""

    good: str
    bad: str
    paradigm: str
    phenomenon: str


@dataclass(frozen=True)
class Judged:
    """How often a model prefers the right sentence, in shares; a tie counts one half.

    pairs: their number. ties: the share of ties. paradigms: {paradigm: share}. phenomena:
    {phenomenon: mean over its paradigms}. mean: over all paradigms, as the BabyLM challenge has it.
    pseudo: whether the scores are pseudo-log-likelihoods, of a masked model.
    """

    pairs: int
    ties: float
    paradigms: dict[str, float]
    phenomena: dict[str, float]
    mean: float
    pseudo: bool


def read_pairs(paths: Sequence[str], only: str | None = None) -> list[Pair]:
    """The pairs of JSONL, CSV or TSV files, also packed.

    Args:
      paths: the files. A row without a `UID` belongs to the paradigm of the file's name, and one
        without a `linguistics_term` to the phenomenon of its paradigm's name.
      only: a JSON file {paradigm: [pairID, ...]}, also .gz; all other pairs are left out.

    Raises FirthError, naming file and line, for a malformed row, for pairs of `only` that no file
    has, and where no pair is left.
    """
    wanted = None if only is None else _listed(only)
    found, pairs = set(), []
    for path in paths:
        name = Path(path).name.split(".")[0]
        for row in Rows(path, COLUMNS, option="--pairs"):
            paradigm = str(row.fields.get("UID") or name)
            number = (paradigm, str(row.fields.get("pairID")))
            found.add(number)
            if wanted is None or number in wanted:
                phenomenon = str(row.fields.get("linguistics_term") or paradigm)
                pairs.append(Pair(*row.text, paradigm, phenomenon))
    if missing := (wanted or set()) - found:
        paradigm, number = min(missing)
        raise FirthError(
            f"--only {only} lists {len(missing):,} pairs that {', '.join(paths)} does not have, "
            f"such as pairID {number} of {paradigm}; expected the list of these pairs"
        )
    if not pairs:
        raise FirthError(f"--only {only} lists no pair")
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
    model, pairs: Sequence[Pair], batch_size: int = BATCH_SIZE, progress: Progress | None = None
) -> np.ndarray:
    """float64 [N, 2]: the scores of the good and of the bad sentences, in nats.

    A score is the sum of a sentence's tokens, without its end (`firth.inference.score.score`). The
    sum of float32 values in float64 does not depend on their order: two orders of the same words
    tie where a model has no context. `progress` shows how many pairs are scored.
    """
    found = []
    for begin in range(0, len(pairs), CHUNK):
        some = pairs[begin : begin + CHUNK]
        texts = [text for pair in some for text in (pair.good, pair.bad)]
        kinds = COLUMNS * len(some)
        names = [f"{kind} {text!r:.60}" for text, kind in zip(texts, kinds, strict=True)]
        found += [
            scored.total for scored in score(model, texts, batch_size=batch_size, names=names)
        ]
        if progress:
            progress.update(begin + len(some), "pairs")
    return np.array(found).reshape(-1, 2)


def judge(pairs: Sequence[Pair], totals_N2: np.ndarray, pseudo: bool = False) -> Judged:
    """Count how often the good sentence scores higher: by paradigm, by phenomenon and in all."""
    good_N, bad_N = totals_N2.T
    right_N = (good_N > bad_N) + 0.5 * (good_N == bad_N)
    members, phenomenon_of = collections.defaultdict(list), {}
    for right, pair in zip(right_N, pairs, strict=True):
        members[pair.paradigm].append(right)
        phenomenon_of[pair.paradigm] = pair.phenomenon
    paradigms = {name: float(np.mean(members[name])) for name in sorted(members)}
    groups = collections.defaultdict(list)
    for name, share in paradigms.items():
        groups[phenomenon_of[name]].append(share)
    return Judged(
        pairs=len(pairs),
        ties=float((good_N == bad_N).mean()),
        paradigms=paradigms,
        phenomena={name: float(np.mean(groups[name])) for name in sorted(groups)},
        mean=float(np.mean(list(paradigms.values()))),
        pseudo=pseudo,
    )


def table(judged: dict[str, Judged]) -> str:
    """Percentages as text: a line for each phenomenon, a column for each model."""
    first = next(iter(judged.values()))
    counts = f"mean of {len(first.paradigms)} paradigms"
    names = [name + " *" * found.pseudo for name, found in judged.items()]
    width = max(map(len, [*first.phenomena, counts]))
    widths = [max(len(name), 6) for name in names]

    def line(title, cells):
        cells = [f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)]
        return "  ".join([f"{title:<{width}}", *cells])

    def shares(title, values):
        return line(title, [f"{100 * value:.1f}" for value in values])

    lines = [line("", names)]
    for name in first.phenomena:
        lines.append(shares(name, [found.phenomena[name] for found in judged.values()]))
    lines.append(shares(counts, [found.mean for found in judged.values()]))
    lines.append(shares("ties, each one half", [found.ties for found in judged.values()]))
    lines.append(f"\n{first.pairs:,} pairs; guessing has 50.0")
    if any(found.pseudo for found in judged.values()):
        lines.append("* pseudo-log-likelihood: each token with all others of its sentence known")
    return "\n".join(lines)
