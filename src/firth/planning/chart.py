"""Plans side by side, as bars."""

import os
from pathlib import Path

from firth.errors import FirthError
from firth.planning.report import number

PANELS = (("FLOPs of the run", "run"), ("USD", "usd"), ("kg CO2e", "kg"))


def draw(plans: dict[str, dict], path: Path):
    """Draw FLOPs, price and emissions of every plan, a bar for each hardware, on log scales.

    Raises FirthError where matplotlib is missing, or does not know the file's ending, and for a
    file that cannot be written.
    """
    try:
        import matplotlib
    except ImportError:
        raise FirthError("--chart needs matplotlib: pip install 'firth[demo]'") from None
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
    known = figure.canvas.get_supported_filetypes()
    if (ending := path.suffix.removeprefix(".")) not in known:
        raise FirthError(f"--chart {path}: expected a file that ends in .png, .svg or .pdf")
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.{ending}")
    try:
        with matplotlib.rc_context({"svg.hashsalt": "firth"}):
            figure.savefig(temporary)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise FirthError(f"--chart {path} cannot be written: {error.strerror or error}") from None


def _short(value: float) -> str:
    """A number beside its bar."""
    return number(value) if value < 1e9 else f"{value:.2e}".replace("e+", "e")
