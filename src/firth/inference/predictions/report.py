"""An evaluation as text for a terminal."""

from collections.abc import Sequence

from firth.inference.predictions.evaluate import Evaluation

LARGEST = 12  # labels of a confusion matrix that still reads well
CONFUSIONS = 10  # pairs of labels that are listed in its place


def report(evaluation: Evaluation) -> str:
    """The metrics, the baseline, the table of labels and the confusion matrix."""
    e = evaluation
    lines = [f"{'examples':<12}{e.examples:>10,}"]
    lines += [f"{name:<12}{value:>10.4f}" for name, value in e.metrics.items()]
    if not e.labels:
        mean = f"rmse of {e.baseline['score']:.4f}, the mean, for all"
        return "\n".join([*lines, f"{'baseline':<12}{e.baseline['rmse']:>10.4f}  {mean}"])
    measure = "accuracy" if "accuracy" in e.baseline else "f1_micro"
    most = f"{measure} of {e.baseline['label']} for all"
    lines.append(f"{'baseline':<12}{e.baseline[measure]:>10.4f}  {most}")
    if "longest" in e.baseline:
        lines.append(f"{'':<12}{e.baseline['longest']:>10.4f}  accuracy of the longest choice")
    rows = [
        [name, *(f"{row[kind]:.4f}" for kind in ("precision", "recall", "f1")), row["examples"]]
        for name, row in e.by_label.items()
    ]
    lines += ["", *table(["label", "precision", "recall", "f1", "examples"], rows), ""]
    if not e.confusion:
        return "\n".join(lines[:-1])
    if len(e.labels) <= LARGEST:
        rows = [[name, *row] for name, row in zip(e.labels, e.confusion, strict=True)]
        return "\n".join([*lines, *table(["label \\ predicted", *e.labels], rows)])
    pairs = [
        [count, label, predicted]
        for label, row in zip(e.labels, e.confusion, strict=True)
        for predicted, count in zip(e.labels, row, strict=True)
        if count and label != predicted
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [[label, predicted, count] for count, label, predicted in pairs[:CONFUSIONS]]
    return "\n".join([*lines, *table(["label", "predicted", "examples"], rows)])


def table(head: Sequence, rows: Sequence[Sequence]) -> list[str]:
    """Lines of aligned columns: the first to the left, the others to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else cell for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *cells)
    ]
