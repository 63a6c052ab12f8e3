"""How often models prefer the right sentence: by paradigm, by phenomenon and in all, as tables.

N pairs.
"""

import collections
import csv
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firth.errors import FirthError
from firth.inference.language.minimal_pairs import Pair

NOTES = {  # kind of scores -> mark, what it means
    "pseudo": ("*", "pseudo-log-likelihood: each token with all others of its sentence known"),
    "bidirectional": ("*", "the mean of both directions"),
    "discriminator": ("+", "log P(original), summed over the tokens: no probability of a sentence"),
}
NOTES["pseudo, within words"] = ("*", f"{NOTES['pseudo'][1]} but the later pieces of its word")


@dataclass(frozen=True)
class Tally:
    """Of some pairs: how often a model prefers the right sentence.

    pairs: their number. ties: how many of them have equal scores. share: of pairs, a tie counting
    one half; of several paradigms the mean of their shares. error: its standard error, with each
    paradigm's pairs a sample of its own: sqrt(p (1 - p) / pairs) for one without ties.
    """

    pairs: int
    ties: int
    share: float
    error: float


@dataclass(frozen=True)
class Judged:
    """What was counted for a model.

    kind: that of its scores, see `firth.inference.score.Scored`. paradigms, phenomena:
    {name: Tally}. total: over all paradigms, each counting alike, as the BabyLM challenge has it.
    whole: the same with the pairs that do not count, or None if all do.
    """

    kind: str
    paradigms: dict[str, Tally]
    phenomena: dict[str, Tally]
    total: Tally
    whole: Tally | None = None


def judge(pairs: Sequence[Pair], totals_N2: np.ndarray, kind: str = "causal") -> Judged:
    """Count how often the good sentence, whose score is the first, scores higher."""
    good_N, bad_N = totals_N2.T
    right_N = (good_N > bad_N) + 0.5 * (good_N == bad_N)

    def by_paradigm(numbers) -> dict[str, Tally]:
        members, tallies = collections.defaultdict(list), {}
        for number in numbers:
            members[pairs[number].paradigm].append(number)
        for name in sorted(members):
            own = right_N[members[name]]
            ties = int((good_N == bad_N)[members[name]].sum())
            error = math.sqrt(own.var() / len(own))
            tallies[name] = Tally(len(own), ties, float(own.mean()), error)
        return tallies

    counting = [number for number, pair in enumerate(pairs) if pair.counts]
    paradigms, groups = by_paradigm(counting), collections.defaultdict(list)
    phenomenon_of = {pair.paradigm: pair.phenomenon for pair in pairs}
    for name, tally in paradigms.items():
        groups[phenomenon_of[name]].append(tally)
    whole = by_paradigm(range(len(pairs))) if len(counting) < len(pairs) else {}
    return Judged(
        kind=kind,
        paradigms=paradigms,
        phenomena={name: _mean(groups[name]) for name in sorted(groups)},
        total=_mean(list(paradigms.values())),
        whole=_mean(list(whole.values())) if whole else None,
    )


def _mean(tallies: list[Tally]) -> Tally:
    """The mean over paradigms."""
    return Tally(
        pairs=sum(tally.pairs for tally in tallies),
        ties=sum(tally.ties for tally in tallies),
        share=float(np.mean([tally.share for tally in tallies])),
        error=math.sqrt(sum(tally.error**2 for tally in tallies)) / len(tallies),
    )


def table(judged: dict[str, Judged]) -> str:
    """Percentages as text: a line for each phenomenon, a column for each model."""
    first = next(iter(judged.values()))
    counts = f"mean of {len(first.paradigms)} paradigms"
    marks = {name: NOTES.get(found.kind, ("", ""))[0] for name, found in judged.items()}
    names = [f"{name} {marks[name]}".rstrip() for name in judged]
    width = max(map(len, [*first.phenomena, counts]))
    widths = [max(len(name), 6) for name in names]

    def line(title, cells):
        cells = [f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)]
        return "  ".join([f"{title:<{width}}", *cells]).rstrip()

    def shares(title, values):
        return line(title, [f"{100 * value:.1f}" for value in values])

    lines = [line("", names)]
    for name in first.phenomena:
        lines.append(shares(name, [found.phenomena[name].share for found in judged.values()]))
    lines.append(shares(counts, [found.total.share for found in judged.values()]))
    lines.append(shares("its standard error", [found.total.error for found in judged.values()]))
    ties = [found.total.ties / found.total.pairs for found in judged.values()]
    lines.append(shares("ties, each one half", ties))
    if first.whole:
        title = f"all {first.whole.pairs:,} pairs"
        lines.append(shares(title, [found.whole.share for found in judged.values()]))
    lines.append(f"\n{first.total.pairs:,} pairs; guessing has 50.0")
    said = dict.fromkeys(NOTES[found.kind] for found in judged.values() if found.kind in NOTES)
    lines += [" ".join(note) for note in said]
    return "\n".join(lines)


def records(judged: dict[str, Judged]) -> list[dict]:
    """A record for each model and paradigm, phenomenon and mean: those of a CSV file."""
    found = []
    for model, one in judged.items():
        levels = ("paradigm", one.paradigms), ("phenomenon", one.phenomena)
        means = [("mean", {"all paradigms": one.total})]
        means += [("whole", {"all paradigms": one.whole})] if one.whole else []
        for level, tallies in (*levels, *means):
            for name, tally in tallies.items():
                about = dict(model=model, kind=one.kind, level=level, name=name)
                found.append(about | dataclasses.asdict(tally))
    return found


def written(
    suffix: str, judged: dict[str, Judged], pairs: Sequence[Pair], scores: dict[str, np.ndarray]
) -> str:
    """The text of the file of results.

    Args:
      suffix: ".jsonl": a line a pair with its scores; ".json": the counts of each model; ".csv" and
        ".tsv": a line for each model and paradigm, phenomenon and mean.
      judged: {model: its counts}.
      pairs: those that were judged.
      scores: {model: float64 [N, 2]}.

    Raises FirthError for another suffix.
    """
    check_suffix(suffix)
    if suffix == ".json":
        return as_json(judged) + "\n"
    if suffix == ".jsonl":
        lines = [
            dataclasses.asdict(pair)
            | {"scores": {name: rows_N2[number].tolist() for name, rows_N2 in scores.items()}}
            for number, pair in enumerate(pairs)
        ]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    rows, file = records(judged), io.StringIO()
    delimiter = "\t" if suffix == ".tsv" else ","
    writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def as_json(judged: dict[str, Judged]) -> str:
    """One object: {model: {"kind", "paradigms", "phenomena", "total", "whole"}}."""
    return json.dumps({name: dataclasses.asdict(found) for name, found in judged.items()})


def check_suffix(suffix: str) -> None:
    """Raise FirthError for a kind of file that `written` does not write."""
    if suffix not in (".jsonl", ".json", ".csv", ".tsv"):
        raise FirthError(
            f"--output ends in {suffix or 'nothing'}; expected .jsonl for the pairs with their "
            "scores, or .json, .csv or .tsv for the table"
        )
