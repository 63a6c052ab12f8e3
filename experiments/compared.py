"""Several pretraining recipes at equal compute, then fine-tuned: what comparisons share.

Every run gets the same number of floating-point operations, as XLA counts them for its compiled
step, and so its own number of steps. What is done already is not done again: kill a comparison at
any time and start the same command.
"""

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TASKS = {  # task -> (metric, epochs)
    "sst2": ("dev/accuracy", 1.0),
    "cola": ("dev/matthews", 5.0),
    "rte": ("dev/accuracy", 5.0),
}
LOSSES = ("rtd_loss", "mlm_loss", "plm_loss", "lm_loss")  # a run's own, the first that it logs


@dataclass(frozen=True)
class Comparison:
    """`runs`: {name: (recipe, {field: value})}, whose first run's steps set the compute."""

    runs: dict[str, tuple[str, dict]]
    workdir: Path
    steps: int
    glue: str
    seeds: str = "0,1,2"
    length: int = 128
    tasks: tuple[str, ...] = tuple(TASKS)
    finetune: dict = field(default_factory=lambda: {"schedule.lr": 3e-4})

    def arguments(self, name: str, **more) -> list[str]:
        """Of `firth train` for one run."""
        recipe, overrides = self.runs[name]
        argv = [f"--config={recipe}", f"--workdir={self.workdir / name}"]
        return argv + [f"--config.{k}={v}" for k, v in (overrides | more).items()]

    def flops(self, name: str) -> float:
        """Floating-point operations of one compiled training step."""
        import jax
        import jax.numpy as jnp

        from firth import experiment, recipe
        from firth.objectives import carry_of
        from firth.train import make_step
        from firth.training import optim
        from firth.training.state import TrainState

        config, _ = recipe.from_command_line(self.arguments(name), prog="run.py")
        run = experiment.build(config)
        optimizer = optim.create_optimizer(config.optimizer)
        schedule = optim.create_schedule(config.schedule, run.steps)

        def init(key):
            params = run.model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]
            carry = carry_of(run.objective, run.model, config.batch_size)
            return TrainState.create(params, optimizer, carry)

        state = jax.eval_shape(init, jax.random.key(0))
        batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), run.batch(0))
        step = jax.jit(make_step(run.model, run.objective, optimizer, schedule, config))
        return step.lower(state, batch).compile().cost_analysis()["flops"]

    def scores(self, name: str, task: str) -> dict:
        """{mean, std, values ...} of a task over the seeds."""
        folder = self.workdir / f"{name}-{task}"
        if not (folder / "summary.json").exists():
            init = f"init={self.workdir / name},length={self.length}"
            firth(
                "train",
                f"--config=finetune.py:task={task},{init}",
                f"--workdir={folder}",
                f"--config.data.dir={self.glue}",
                f"--config.seeds={self.seeds}",
                f"--config.epochs={TASKS[task][1]}",
                "--config.batch_size=64",
                *(f"--config.{k}={v}" for k, v in self.finetune.items()),
            )
        return json.loads((folder / "summary.json").read_text())[TASKS[task][0]]

    def run(self) -> list[dict]:
        """Everything; also writes results.jsonl, results.md and curves.png in the workdir."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        costs = {name: self.flops(name) for name in self.runs}
        compute = self.steps * costs[next(iter(self.runs))]
        rows = []
        for name, cost in costs.items():
            steps = round(compute / cost)
            firth("train", *self.arguments(name, steps=steps))
            scores = {task: self.scores(name, task) for task in self.tasks}
            rows.append({"run": name, "flops": cost, "steps": steps, **scores})
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (self.workdir / "results.jsonl").write_text(lines)
        table = [f"| run | GFLOP a step | steps | {' | '.join(self.tasks)} |"]
        table.append("|---" * (3 + len(self.tasks)) + "|")
        for row in rows:
            cells = [f"{row[t]['mean']:.3f} ± {row[t]['std'] or 0:.3f}" for t in self.tasks]
            cells = [row["run"], f"{row['flops'] / 1e9:.0f}", str(row["steps"]), *cells]
            table.append(f"| {' | '.join(cells)} |")
        (self.workdir / "results.md").write_text("\n".join(table) + "\n")
        self.curves()
        print("\n".join(table))
        return rows

    def curves(self):
        """Training losses of every run against its share of the compute."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots(figsize=(7, 4))
        for name in self.runs:
            lines = [json.loads(x) for x in (self.workdir / name / "metrics.jsonl").open()]
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


def firth(*argv):
    """Run the command; its own resume makes a second try cheap."""
    subprocess.run([sys.executable, "-m", "firth.cli", *map(str, argv)], check=True)


def shared_settings(store: str, batch: int, rate: float) -> dict:
    """Overrides of a recipe that all runs of a comparison share."""
    return {
        "data.store": store,
        "batch_size": batch,
        "schedule.lr": rate,
        "schedule.warmup": 0.1,
        "log_every": 50,
        "eval.every": 1000,
        "eval.batch_size": batch,
        "eval.batches": 20,
        "checkpoint.minutes": 5.0,
        "checkpoint.every": 0,
        "checkpoint.keep": 1,
    }
