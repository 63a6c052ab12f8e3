"""Curves of a pretraining run: python experiments/bert_mini/plot.py WORKDIR OUTPUT.png"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def series(lines, tag):
    """(steps, values) of a tag of the journal."""
    points = [(line["step"], line[tag]) for line in lines if tag in line]
    return [step for step, _ in points], [value for _, value in points]


def main():
    workdir, output = Path(sys.argv[1]), sys.argv[2]
    lines = [json.loads(text) for text in (workdir / "metrics.jsonl").open()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    for axes, name, title in (
        (left, "mlm_loss", "masked LM loss, nats"),
        (right, "nsp_accuracy", "next-sentence accuracy"),
    ):
        axes.plot(*series(lines, f"train/{name}"), lw=0.8, label="training")
        axes.plot(*series(lines, f"eval/heldout/{name}"), "o-", ms=4, label="held out")
        axes.set(xlabel="step", title=title)
        axes.legend()
    figure.savefig(output, dpi=130, bbox_inches="tight")


if __name__ == "__main__":
    main()
