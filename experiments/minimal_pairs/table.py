"""The table of README.md: each model by phenomenon, and published models beside them.

python experiments/minimal_pairs/table.py frequencies,kn5,untrained
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from measured import read_results

RESULTS = Path(__file__).with_name("results.jsonl")
# Trained on 10 M words of BabyLM's text; (mean over the 67 paradigms of BLiMP, supplement).
PUBLISHED = {
    "word frequencies, ties as right": (66.3, 66.1),
    "untrained": (48.8, 42.3),
    "KenLM 5-gram": (63.4, 60.3),
    "LSTM, 39 M parameters": (66.1, 55.3),
    "OPT-125M (2023)": (62.6, None),
    "RoBERTa-base (2023)": (69.5, None),
    "LTG-BERT, about 20 epochs (2024)": (60.6, 60.8),
    "BabyLlama, about 20 epochs (2024)": (69.8, 59.5),
    "GPT-BERT, 10 epochs (2025)": (70.4, 63.7),
    "GPT-2 (2026)": (65.1, 57.3),
}


def percent(tally: dict | None) -> str:
    """A share and its standard error."""
    return "" if tally is None else f"{100 * tally['share']:.1f} ± {100 * tally['error']:.1f}"


def row(cells) -> str:
    return f"| {' | '.join(cells)} |"


def lines(results: Path, names: list[str]) -> list[str]:
    """The lines of the tables; a model's newest score counts, and one without has no column."""
    scored = {which: {} for which in ("blimp", "supplement")}
    for line in read_results(results):
        scored[line["set"]][line["model"]] = line
    found = {name: scored["blimp"][name] for name in names if name in scored["blimp"]}
    if not found:
        return ["nothing is scored yet"]
    more = {name: scored["supplement"].get(name) for name in found}
    made = [row(["%", *found]), row(["---"] * (1 + len(found)))]
    for phenomenon in next(iter(found.values()))["phenomena"]:
        shares = [one["phenomena"][phenomenon]["share"] for one in found.values()]
        made.append(row([phenomenon.replace("_", " "), *(f"{100 * x:.1f}" for x in shares)]))
    made.append(row(["**BLiMP**", *(percent(one["total"]) for one in found.values())]))
    ties = [one["total"]["ties"] / one["total"]["pairs"] for one in found.values()]
    made.append(row(["ties, each one half", *(f"{100 * x:.1f}" for x in ties)]))
    paradigms = next((one["paradigms"] for one in more.values() if one), {})
    for name in paradigms:
        shares = [one and one["paradigms"][name]["share"] for one in more.values()]
        cells = ["" if x is None else f"{100 * x:.1f}" for x in shares]
        made.append(row([f"supplement: {name.replace('_', ' ')}", *cells]))
    if paradigms:
        cells = [percent(one and one["total"]) for one in more.values()]
        made.append(row(["**supplement**", *cells]))
    made += ["", row(["published, 10 M words", "BLiMP", "supplement"]), row(["---"] * 3)]
    for name, figures in PUBLISHED.items():
        made.append(row([name, *("" if x is None else f"{x:.1f}" for x in figures)]))
    return made


if __name__ == "__main__":
    print("\n".join(lines(RESULTS, sys.argv[1].split(","))))
