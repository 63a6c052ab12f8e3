"""The tables of README.md, from results.jsonl.

python experiments/small_recipes/table.py [results.jsonl]
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
LOSSES = ("mlm_loss", "plm_loss", "lm_loss", "rtd_loss")


def full(rows: list[dict]) -> list[str]:
    """What each recipe reached, a line a run."""
    lines = [
        "| recipe | steps | core-minutes | GiB | entropy of single words | held-out loss | below |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in rows if row["kind"] == "full"):
        held = row["heldout"]
        loss = held[next(name for name in LOSSES if name in held)]
        base = row["gain"] + loss  # of replaced tokens: the entropy of their share
        spent = "resumed" if row["resumed"] else f"{row['core_minutes'] or row['minutes']:.0f}"
        memory = f"{row['gib']:.1f}" if row["gib"] else ""
        cells = [f"`{row['family']}.py:{row['size']}`", f"{row['steps']:,}", spent]
        cells += [memory, f"{base:.3f}", f"{loss:.3f}", f"**{row['gain']:.2f}**"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def trials(rows: list[dict]) -> list[str]:
    """How far below the entropy of single words each short run got, a line a family and size."""
    lines = []
    of = [row for row in rows if row["kind"] == "trial"]
    for family, size in dict.fromkeys((row["family"], row["size"]) for row in of):
        found = [row for row in of if (row["family"], row["size"]) == (family, size)]
        lines += [f"`{family}.py:{size}`, nats below:", ""]
        lines += [
            "| rate | warm-up | rows x tokens | decay | steps | below |",
            "|---|---|---|---|---|---|",
        ]
        for row in sorted(found, key=lambda row: -row["gain"]):
            s = row["settings"]
            shape = "{} x {}".format(*s["shape"])
            cells = [f"{s['lr']:g}", f"{s['warmup']:g}", shape, f"{s['weight_decay']:g}"]
            lines.append(
                f"| {' | '.join([*cells, str(row['steps']), format(row['gain'], '.3f')])} |"
            )
        lines.append("")
    return lines


def says(rows: list[dict]) -> list[str]:
    """What the models of full runs say."""
    lines = []
    for row in (row for row in rows if row["kind"] == "full" and row.get("says")):
        lines += [f"`{row['family']}.py:{row['size']}`", ""]
        if "text" in row["says"]:
            lines.append(f"- {row['says']['text']}")
        else:
            lines += [f"- {text} *{', '.join(words)}*" for text, words in row["says"].items()]
        lines.append("")
    return lines


def main():
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "results.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    print("\n".join([*full(rows), "", *trials(rows), *says(rows)]))


if __name__ == "__main__":
    main()
