"""The tables of a GPU's results.jsonl, as Markdown, and which goals are met.

    python experiments/gpu/table.py runs/gpu

Figures are medians over the rounds. `of the ceiling` is the FLOP/s of the model's own products
beside the fastest product measured on the same device; PyTorch's are counted as the same work.
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cells import FAILED, RESULTS, SKIPPED, read

VECTORS = "texts_s", "tokens_s", "differs"
GENERATED = "generate", "rows", "tokens"
SAVES = "step_ms", "beside_ms", "slower", "blocked_ms", "behind_s", "state_gib"
COMPILED = "trace_s", "compile_s", "cached_s"
ELECTRA_STEPS = 1_000_000  # of the paper's small


class Steps:
    """The training steps of one device: {recipe, tokens, rows, dropout: {side: [row]}}."""

    def __init__(self, rows: list[dict]):
        self.cells = {}
        for row in rows:
            if "step_ms" in row and "side" in row:
                key = tuple(row[name] for name in ("recipe", "length", "rows", "rate"))
                self.cells.setdefault(key, {}).setdefault(row["side"], []).append(row)
        self.ceiling = max((row["tflops"] for row in rows if "product" in row), default=None)

    def median(self, key, side: str, name: str) -> float:
        """A figure of a side."""
        return statistics.median(row[name] for row in self.cells[key][side])

    def best(self, key, library: str) -> str | None:
        """The fastest side of "firth" or "torch"; None without any."""
        sides = [side for side in self.cells[key] if side.startswith(library)]
        return min(sides, key=lambda side: self.median(key, side, "step_ms"), default=None)

    def ratio(self, key, side: str) -> float | None:
        """How many times as fast a side is as the best of PyTorch; None without PyTorch."""
        other = self.best(key, "torch")
        return other and self.median(key, other, "step_ms") / self.median(key, side, "step_ms")

    def share(self, key, side: str) -> float | None:
        """FLOP/s of the model's own products beside the fastest product."""
        ours = self.best(key, "firth")
        if not ours or not self.ceiling:
            return None
        work = self.median(key, ours, "tflops") * self.median(key, ours, "step_ms")
        return work / self.median(key, side, "step_ms") / self.ceiling

    def table(self) -> list[list[str]]:
        """A line for each cell and side."""
        lines = [["recipe", "tokens", "rows", "dropout of attention", "side", "ms a step"]]
        lines[0] += ["tokens/s", "beside best PyTorch", "of the ceiling", "GiB", "s to compile"]
        for key, sides in self.cells.items():
            for side in sides:
                step, speed, gib, compiled = (
                    self.median(key, side, name)
                    for name in ("step_ms", "tokens_s", "gib", "compile_s")
                )
                lines.append([*map(str, key), side, f"{step:.1f}", f"{speed:,.0f}"])
                lines[-1] += [times(self.ratio(key, side)), percent(self.share(key, side))]
                lines[-1] += [f"{gib:.1f}", f"{compiled:.0f}"]
        return lines


def goals(steps: Steps) -> list[list[str]]:
    """What is expected of one H200 (performance, section 5), and whether it is there."""
    lines = [["goal", "expected", "got", ""]]

    def judge(goal, expected, got, unit="", lower=False):
        met = got is not None and (got <= expected if lower else got >= expected)
        verdict = "not measured" if got is None else "**met**" if met else "**not met**"
        sign = "at most" if lower else "at least"
        shown = "" if got is None else f"{got:.3g}{unit}"
        lines.append([goal, f"{sign} {expected:g}{unit}", shown, verdict])

    def at(recipe, length):
        """The cells of a recipe at a length; one of nothing where there are none."""
        keys = [key for key in steps.cells if key[:2] == (recipe, length)]
        return [key for key in keys if steps.best(key, "firth")] or [None]

    def name(recipe, length, key):
        rate = "" if key is None else f", dropout of attention {key[3]:g}"
        return f"{recipe.replace('.py:', ' ')}, {length} tokens{rate}"

    for recipe, speed in (("bert.py:base", 0.8), ("bert.py:large", 0.27)):
        for key in at(recipe, 512):
            ours, text = key and steps.best(key, "firth"), name(recipe, 512, key)
            got = key and steps.median(key, ours, "tokens_s") / 1e6
            judge(text, speed, got, " M tokens/s")
            judge(text + ", best PyTorch", 1.2, key and steps.ratio(key, ours), " x")
    for key in at("electra.py:small", 128):
        step = key and steps.median(key, steps.best(key, "firth"), "step_ms")
        hours = step and step * ELECTRA_STEPS / 3.6e6
        judge("ELECTRA-small, the paper's 1M steps of 128 x 128", 2.3, hours, " h", lower=True)
    for key in at("xlnet.py:base", 512):
        got = key and steps.ratio(key, steps.best(key, "firth"))
        judge("xlnet base, 512 tokens, best PyTorch", 3, got, " x")
    return lines


def beside(rows: list[dict], fields: tuple[str, ...], figures: tuple[str, ...]) -> list[list[str]]:
    """A line for each cell that has these fields, and side: the medians of its figures.

    With two sides the first figure is a speed, and its ratio to PyTorch's ends the line.
    """
    groups = {}
    for row in rows:
        if fields[0] in row and figures[0] in row:
            key = tuple(str(row[name]) for name in fields)
            groups.setdefault(key, {}).setdefault(row.get("side", ""), []).append(row)
    lines = [[*fields, "side", *figures, "beside PyTorch"]]
    for key, sides in groups.items():
        middle = {
            side: [statistics.median(row[name] for row in found) for name in figures]
            for side, found in sides.items()
        }
        for side, values in middle.items():
            ratio = values[0] / middle["torch"][0] if side and "torch" in middle else None
            lines.append([*key, side, *(f"{value:,g}" for value in values), times(ratio)])
    return lines


def attention(rows: list[dict]) -> list[list[str]]:
    """cuDNN's attention beside plain: forward, and forward and backward."""
    groups = {}
    for row in rows:
        if "both_ms" in row:
            key = "x".join(map(str, row["shape"])), row["mask"], str(row["rate"])
            groups.setdefault(key, {}).setdefault(row["way"], []).append(row)
    lines = [["rows x tokens x heads x width", "mask", "dropout", "way", "forward ms", "both ms"]]
    lines[0].append("beside plain")
    for key, ways in groups.items():
        plain = ways.get("plain")
        for way, found in ways.items():
            both = statistics.median(row["both_ms"] for row in found)
            forward = statistics.median(row["forward_ms"] for row in found)
            ratio = statistics.median(row["both_ms"] for row in plain) / both if plain else None
            lines.append([*key, way, f"{forward:.3f}", f"{both:.3f}", times(ratio)])
    return lines


def products(rows: list[dict]) -> list[list[str]]:
    """The rates of matrix products."""
    lines = [["product", "TFLOP/s"]]
    for row in rows:
        if "product" in row:
            lines.append(["x".join(map(str, row["product"])), f"{row['tflops']:,g}"])
    return lines


def pretraining(rows: list[dict]) -> list[list[list[str]]]:
    """Two tables: the runs, and the tasks with each weights and none."""
    runs = [["recipe", "steps", "minutes", "held out"]]
    tasks = [["task", "weights", "dev", "seeds"]]
    for row in rows:
        if "heldout" in row:
            figures = ", ".join(f"{k} {v:.3f}" for k, v in row["heldout"].items())
            steps = f"{row['steps']:,} of {row['of']:,}"
            runs.append([row["recipe"], steps, f"{row['minutes']:.1f}", figures])
        elif row.get("part") == "majority" and "dev" in row:
            shown = ", ".join(f"{k} {v:.3f}" for k, v in row["dev"].items())
            tasks.append([row["task"], "always the most frequent label", shown, ""])
        elif "mean" in row:
            spread = "" if row["std"] is None else f" ± {row['std']:.3f}"
            shown = f"{row['metric'].partition('/')[2]} {row['mean']:.3f}{spread}"
            weights = f"{row['recipe']}, {row['weights']}"
            tasks.append([row["task"], weights, shown, str(len(row["values"]))])
    return [runs, tasks]


def times(value: float | None) -> str:
    """A ratio, or nothing."""
    return "" if value is None else f"{value:.2f} x"


def percent(value: float | None) -> str:
    """A share, or nothing."""
    return "" if value is None else f"{value:.0%}"


def markdown(title: str, lines: list[list[str]]) -> str:
    """A section with a table; without lines it says so."""
    if not lines[1:]:
        return f"## {title}\n\nNot measured.\n"
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([f"## {title}", "", head, "|---" * len(lines[0]) + "|", *body, ""])


def report(rows: list[dict]) -> str:
    """All tables of one device."""
    steps = Steps(rows)
    runs, tasks = pretraining(rows)
    found = [
        markdown("Goals", goals(steps)),
        markdown("Products", products(rows)),
        markdown("Attention", attention(rows)),
        markdown("Training steps", steps.table()),
        markdown("Vectors", beside(rows, ("represent",), VECTORS)),
        markdown("Generation", beside(rows, GENERATED, ("tokens_s", "token_ms"))),
        markdown("Saves beside steps", beside(rows, ("saves", "rows", "length"), SAVES)),
        markdown("Compiling", beside(rows, ("compile", "scan"), COMPILED)),
        markdown("Pretraining", runs),
        markdown("Tasks", tasks),
    ]
    reasons = sorted({reason(row) for row in rows if SKIPPED in row or failed(row, rows)})
    found.append(markdown("Not measured", [["what", "why"], *reasons]))
    return "\n".join(found)


def failed(row: dict, rows: list[dict]) -> bool:
    """Whether a cell failed, and no other try did not."""
    cell = {name: value for name, value in row.items() if name != FAILED}
    return FAILED in row and not any(
        FAILED not in other and cell.items() <= other.items() for other in rows
    )


def reason(row: dict) -> tuple[str, str]:
    """What was not measured, and why."""
    why = row.get(SKIPPED) or row[FAILED]
    cell = {k: v for k, v in row.items() if k not in ("device", "round", SKIPPED, FAILED)}
    return " ".join(map(str, cell.values())), why


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="what run.py had as --out")
    args = parser.parse_args()
    rows = read(args.out)
    if not rows:
        where = args.out / RESULTS
        print(f"table.py: {where} has no results; run.py makes them", file=sys.stderr)
        return 2
    for device in dict.fromkeys(row["device"] for row in rows):
        print(f"# {device}\n")
        print(report([row for row in rows if row["device"] == device]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
