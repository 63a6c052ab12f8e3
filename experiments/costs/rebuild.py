"""Rebuild the cost tables of Strubell et al. (2019), and price known pretraining runs anew.

python experiments/costs/rebuild.py            # prints the tables, writes results.jsonl
"""

import json
from pathlib import Path

from firth import recipe
from firth.planning import cost, flops
from firth.planning.hardware import CHIPS
from firth.planning.papers import strubell
from firth.planning.report import aligned, number
from firth.run.outline import outline
from firth.storage.local import write_text

HERE = Path(__file__).parent
BOTH_LENGTHS = ((",length=128", 900_000, 256), (",length=512", 100_000, 256))
# model, chip, how many, hours, recipe, its parts: (arguments, updates, rows of a batch)
RUNS = (
    ("BERT-base", "v2", 16, 96, "bert.py:base", BOTH_LENGTHS),
    ("BERT-large", "v2", 64, 96, "bert.py:large", BOTH_LENGTHS),
    ("RoBERTa, 100k updates", "v100", 1024, 24, "roberta.py:large", (("", 100_000, 8192),)),
    ("XLNet, 2.5 days", "v3", 512, 60, "xlnet.py:large", (("", 500_000, 8192),)),
    ("XLNet, 5.5 days", "v3", 512, 132, "xlnet.py:large", (("", 500_000, 8192),)),
)


def published():
    """(row of the paper's table 3, what the formula gives), one a row."""
    grid = strubell.POUNDS_PER_KWH * strubell.KG_PER_POUND
    for row in strubell.TABLE:
        watts = (row.watts or 0) / row.chips
        low, high = (
            cost.of_hours(row.hours, row.chips, watts, usd, strubell.PUE, grid)
            for usd in strubell.RATES[row.hardware]
        )
        got = {"usd": (round(low.usd), round(high.usd))}
        if row.watts:
            got |= {"kwh": round(low.kwh), "pounds": round(low.kg / strubell.KG_PER_POUND)}
        yield row, got


def today():
    """What the published runs took, at today's assumptions; and the utilisation that they imply."""
    assumed = cost.Assumptions()
    for model, name, chips, hours, path, parts in RUNS:
        chip, count = CHIPS[name], 0
        for arguments, steps, rows in parts:
            # Scanned layers are counted whole: those programs, but for XLNet's, computed the last
            # layer at every token.
            whole = not path.startswith("xlnet")
            changes = [f"--config.batch_size={rows}", f"--config.model.scan={whole}"]
            config = recipe.read_recipe(path + arguments, changes)
            count += steps * sum(flops.update_flops(outline(config)).values())
        found = cost.of_hours(hours, chips, chip.watts, chip.usd, assumed.pue, assumed.kg_per_kwh)
        yield {
            "model": model,
            "on": f"{chips} x {name}",
            "hours": hours,
            "flops": count,
            "mfu": count / (chips * chip.flops * hours * 3600),
            "usd": found.usd,
            "kwh": found.kwh,
            "kg": found.kg,
            "compared": cost.comparison(found.kg),
        }


def main():
    """Print both tables and record them."""
    lines, head = [], ("model", "on", "kWh (paper)", "lb CO2e (paper)", "USD (paper)")
    table = [head]
    for row, got in published():
        lines.append({"table": "strubell", **row._asdict(), "got": got})
        table.append(
            (
                row.model,
                f"{row.chips} x {row.hardware}",
                f"{got.get('kwh', '-')} ({row.kwh or '-'})",
                f"{got.get('pounds', '-')} ({row.pounds or '-'})",
                f"{got['usd'][0]}-{got['usd'][1]} ({row.usd[0]}-{row.usd[1]})",
            )
        )
    print("\n".join(aligned(table)), "\n")
    table = [("model", "on", "hours", "FLOPs", "MFU", "USD", "kWh", "kg CO2e", "as much as")]
    for row in today():
        lines.append({"table": "today", **row})
        table.append(
            (
                row["model"],
                row["on"],
                str(row["hours"]),
                f"{row['flops']:.2e}",
                f"{row['mfu']:.1%}",
                *(number(row[key]) for key in ("usd", "kwh", "kg")),
                row["compared"],
            )
        )
    print("\n".join(aligned(table)))
    write_text(HERE / "results.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
