"""Frozen against fine-tuned, a row a task: what the whole encoder's training adds to a head."""

import statistics
from pathlib import Path

from suite import TASKS

LOOKS = {  # way -> (label, marker, colour)
    "constant": ("a constant answer", "|", "0.4"),
    "frozen": ("frozen", "o", "tab:blue"),
    "tuned": ("fine-tuned", "D", "tab:red"),
}


def points(lines: list[dict]) -> dict[str, dict[str, list[float]]]:
    """{"task, metric, split": {way: the values of its seeds}} of each task's first metric.

    Of test where a run has it, else of dev. Constant answers are the same in every run.
    """
    found = {}
    for name, task in TASKS.items():
        own = [line for line in lines if line["task"] == name]
        metric = task.metrics[0]
        split = "test" if any(metric in line.get("test", {}) for line in own) else "dev"
        ways = {}
        for line in own:
            if metric in line.get(split, {}):
                ways.setdefault(line["way"], []).append(line[split][metric])
                if constant := line.get(f"{split}_baseline", {}).get(metric):
                    ways["constant"] = [constant]
        if ways:
            found[f"{name}, {metric.replace('_', ' ')}, {split}"] = ways
    return found


def draw(lines: list[dict], path: Path) -> None:
    """Write the figure: a mark a seed, a line from the mean of one way to that of the other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = points(lines)
    figure, axes = plt.subplots(figsize=(7, 1.2 + 0.32 * len(rows)))
    for place, ways in enumerate(rows.values()):
        means = [statistics.mean(ways[way]) for way in ("frozen", "tuned") if way in ways]
        axes.plot(means, [place] * len(means), color="0.8", linewidth=3, zorder=1)
        for way, values in ways.items():
            _, marker, color = LOOKS[way]
            axes.scatter(values, [place] * len(values), marker=marker, color=color, s=40)
    for label, marker, color in LOOKS.values():
        axes.scatter([], [], marker=marker, color=color, s=40, label=label)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel="points", xlim=(-2, 102))
    axes.invert_yaxis()
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=3, frameon=False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)
