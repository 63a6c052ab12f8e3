"""Plans side by side, as bars."""

from pathlib import Path

from firth.display.curves import save
from firth.planning.report import number

PANELS = (("FLOPs of the run", "run"), ("USD", "usd"), ("kg CO2e", "kg"))


def draw(plans: dict[str, dict], path: Path):
    """Draw FLOPs, price and emissions of every plan, a bar for each hardware, on log scales.

    Raises FirthError for another ending than .png, .svg or .pdf, and where it cannot be written.
    """
    from matplotlib.figure import Figure

    bars = [
        (f"{name}\n{where['chips']} x {where['chip']}", where | {"run": plan["flops"]["run"]})
        for name, plan in plans.items()
        for where in plan["hardware"]
    ]
    figure = Figure(figsize=(4 * len(PANELS), 1.5 + 0.45 * len(bars)), layout="constrained")
    labels = [label for label, _ in bars]
    for axes, (title, field) in zip(
        figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True
    ):
        drawn = axes.barh(labels, [float(values[field]) for _, values in bars], log=True)
        axes.bar_label(drawn, fmt=_short, padding=3)
        axes.set_title(title)
        axes.margins(x=0.35)
    axes.invert_yaxis()
    save(figure, path)


def _short(value: float) -> str:
    """A number beside its bar."""
    return number(value) if value < 1e9 else f"{value:.2e}".replace("e+", "e")
