"""Several pretraining recipes at equal compute, then fine-tuned: what comparisons share.

Every run gets the same number of floating-point operations, as XLA counts them for its compiled
step, and so its own number of steps. What is done already is not done again: kill a comparison at
any time and start the same command.
"""

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path

from commands import call, settings

METRICS = {"sst2": "dev/accuracy", "cola": "dev/matthews", "rte": "dev/accuracy"}
LOSSES = ("rtd_loss", "mlm_loss", "plm_loss", "lm_loss")  # a run's own, the first that it logs


@dataclass(frozen=True)
class Comparison:
    """`runs`: {name: (recipe, {field: value})}; `args`: see `parser`.

    `epochs`: {task: how long its fine-tuning is}; `finetune`: its other settings.
    """

    runs: dict[str, tuple[str, dict]]
    args: argparse.Namespace
    epochs: dict[str, float]
    finetune: dict = field(default_factory=lambda: {"schedule.lr": 3e-4})

    @property
    def workdir(self) -> Path:
        """Where all runs are."""
        return self.args.workdir

    def arguments(self, name: str, **more) -> list[str]:
        """Of `firth train` for one run."""
        recipe, overrides = self.runs[name]
        argv = [f"--config={recipe}", f"--workdir={self.workdir / name}"]
        return argv + settings(overrides | more)

    def flops(self, name: str) -> float:
        """Floating-point operations of one compiled training step."""
        import jax

        from firth import recipe
        from firth.run import experiment
        from firth.run.program import lay_out
        from firth.training.partition import create_mesh

        config, _ = recipe.from_command_line(self.arguments(name), prog="run.py")
        mesh = create_mesh(config.mesh)
        run = experiment.build(config, mesh)
        program = lay_out(run.model, run.objective, config, run.steps, mesh)
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), run.batch(0))
        return program.step.lower(program.state, batch).compile().cost_analysis()["flops"]

    def scores(self, name: str, task: str) -> dict:
        """{mean, std, values ...} of a task over the seeds."""
        folder = self.workdir / f"{name}-{task}"
        if not (folder / "summary.json").exists():
            init = f"init={self.workdir / name},length={self.args.tuning_length}"
            call(
                "train",
                f"--config=finetune.py:task={task},{init}",
                f"--workdir={folder}",
                f"--config.data.dir={self.args.glue}",
                f"--config.seeds={self.args.seeds}",
                f"--config.epochs={self.epochs[task]}",
                "--config.batch_size=64",
                *settings(self.finetune),
            )
        return json.loads((folder / "summary.json").read_text())[METRICS[task]]

    def run(self) -> None:
        """Everything, or the runs of `--only`; the whole writes results.jsonl, .md and curves."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        costs = {name: self.flops(name) for name in self.runs}
        compute = self.args.steps * next(iter(costs.values()))
        only = self.args.only.split(",") if self.args.only else list(self.runs)
        rows = []
        for name in only:
            steps = round(compute / costs[name])
            call("train", *self.arguments(name, steps=steps))
            scores = {task: self.scores(name, task) for task in self.epochs}
            row = {"run": name, "flops": costs[name], "steps": steps}
            rows.append(row | self.losses(name) | scores)
        if not self.args.only:
            self.report(rows)

    def losses(self, name: str) -> dict:
        """The last metrics of a run's training and of its held-out text."""
        found = {}
        for line in self.journal(name):
            found |= {tag: value for tag, value in line.items() if "/" in tag}
        return {tag: found[tag] for tag in sorted(found) if tag.startswith(("train/", "eval/"))}

    def journal(self, name: str) -> list[dict]:
        """The entries of a run's metrics.jsonl."""
        from firth.training.journal import read_journal

        return read_journal(self.workdir / name)

    def report(self, rows: list[dict]):
        """Write and print the table, and draw the curves."""
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (self.workdir / "results.jsonl").write_text(lines)
        table = [f"| run | GFLOP a step | steps | {' | '.join(self.epochs)} |"]
        table.append("|---" * (3 + len(self.epochs)) + "|")
        for row in rows:
            cells = [f"{row[t]['mean']:.3f} ± {row[t]['std'] or 0:.3f}" for t in self.epochs]
            cells = [row["run"], f"{row['flops'] / 1e9:.0f}", str(row["steps"]), *cells]
            table.append(f"| {' | '.join(cells)} |")
        (self.workdir / "results.md").write_text("\n".join(table) + "\n")
        self.curves()
        print("\n".join(table))

    def curves(self):
        """Training losses of every run against its share of the compute."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(7, 4))
        for name in self.runs:
            lines = self.journal(name)
            for loss in LOSSES:
                tag = f"train/{loss}"
                points = [(line["step"], line[tag]) for line in lines if tag in line]
                if points:
                    last = points[-1][0]
                    axes.plot([s / last for s, _ in points], [v for _, v in points], label=name)
                    break
        axes.set(
            xlabel="share of the compute", ylabel="loss of the model's own objective", yscale="log"
        )
        axes.legend()
        figure.savefig(self.workdir / "curves.png", dpi=150, bbox_inches="tight")


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every comparison has."""
    made = argparse.ArgumentParser(description=description)
    add = made.add_argument
    add("--store", required=True)
    add("--glue", required=True, help="GLUE's TSVs")
    add("--workdir", type=Path, required=True)
    add("--size", default="mini")
    add("--length", type=int, default=128)
    add("--tuning-length", type=int, default=128, help="of rows in fine-tuning")
    add("--batch", type=int, default=64)
    add("--rate", type=float, default=5e-4)
    add("--steps", type=int, default=10_000, help="of the first run; sets the compute")
    add("--seeds", default="0,1,2")
    add("--short", action="store_true", help="fine-tune for a fraction of the epochs")
    add("--only", default="", help="do these runs' share, for instance on another machine")
    return made


def shared_settings(args) -> dict:
    """Overrides of a recipe that all runs of a comparison share."""
    return {
        "data.store": args.store,
        "batch_size": args.batch,
        "schedule.lr": args.rate,
        "schedule.warmup": 0.1,
        "log_every": 50,
        "eval.every": 1000,
        "eval.batch_size": args.batch,
        "eval.batches": 20,
        "checkpoint.minutes": 5.0,
        "checkpoint.every": 0,
        "checkpoint.keep": 1,
    }
