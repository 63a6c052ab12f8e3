"""Which pretraining objective learns most from equal compute? (Clark et al. 2020, table 5)

    python experiments/electra_efficiency/run.py --store store/ --glue glue/ --workdir runs/five

One body, one corpus, five objectives: BERT's masked LM, Replace MLM, ELECTRA 15 %, All-tokens MLM
and ELECTRA. Every run gets the same number of floating-point operations, as XLA counts them for
its compiled step, and so its own number of steps. Then each encoder is fine-tuned on SST-2, CoLA
and RTE over several seeds. What is done already is not done again: kill it at any time and start
the same command. Writes results.jsonl, results.md and curves.png in the workdir.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

VARIANTS = ("mlm", "replace_mlm", "electra_15", "all_tokens", "electra")
TASKS = {  # task -> (metric, epochs)
    "sst2": ("dev/accuracy", 1.0),
    "cola": ("dev/matthews", 5.0),
    "rte": ("dev/accuracy", 5.0),
}


def settings(args, variant):
    """Overrides of the recipe that all variants share, but for the number of steps."""
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
    } | ({} if variant == "mlm" else {"objective.width": args.width})


def recipe_of(args, variant):
    return f"electra.py:{args.size},length={args.length},variant={variant}"


def flops(args, variant):
    """Floating-point operations of one compiled training step."""
    import jax
    import jax.numpy as jnp

    from firth import experiment, recipe
    from firth.train import make_step
    from firth.training import optim
    from firth.training.state import TrainState

    argv = [f"--config={recipe_of(args, variant)}", f"--workdir={args.workdir / variant}"]
    argv += [f"--config.{name}={value}" for name, value in settings(args, variant).items()]
    config, _ = recipe.from_command_line(argv, prog="run.py")
    run = experiment.build(config)
    optimizer = optim.create_optimizer(config.optimizer)
    schedule = optim.create_schedule(config.schedule, run.steps)

    def init(key):
        params = run.model.init(key, jnp.zeros((1, 8), jnp.int32))["params"]
        return TrainState.create(params, optimizer)

    state = jax.eval_shape(init, jax.random.key(0))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), run.batch(0))
    step = jax.jit(make_step(run.model, run.objective, optimizer, schedule, config))
    return step.lower(state, batch).compile().cost_analysis()["flops"]


def firth(*argv):
    """Run the command; its own resume makes a second try cheap."""
    subprocess.run([sys.executable, "-m", "firth.cli", *map(str, argv)], check=True)


def pretrain(args, variant, steps):
    overrides = settings(args, variant) | {"steps": steps}
    firth(
        "train",
        f"--config={recipe_of(args, variant)}",
        f"--workdir={args.workdir / variant}",
        *(f"--config.{name}={value}" for name, value in overrides.items()),
    )


def finetune(args, variant, task):
    """{seed: score} of a task."""
    folder = args.workdir / f"{variant}-{task}"
    if not (folder / "summary.json").exists():
        firth(
            "train",
            f"--config=finetune.py:task={task},init={args.workdir / variant},length={args.length}",
            f"--workdir={folder}",
            f"--config.data.dir={args.glue}",
            f"--config.seeds={args.seeds}",
            f"--config.epochs={TASKS[task][1]}",
            "--config.batch_size=64",
            "--config.schedule.lr=3e-4",
            "--config.optimizer.layer_decay=0.8",
        )
    return json.loads((folder / "summary.json").read_text())[TASKS[task][0]]


def curves(workdir):
    """Training losses of every variant against its share of the compute."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for variant in VARIANTS:
        lines = [json.loads(x) for x in (workdir / variant / "metrics.jsonl").open()]
        for name in ("rtd_loss", "mlm_loss"):
            points = [(e["step"], e[f"train/{name}"]) for e in lines if f"train/{name}" in e]
            if points:
                last = points[-1][0]
                axes.plot([s / last for s, _ in points], [v for _, v in points], label=variant)
                break
    axes.set(
        xlabel="share of the compute", ylabel="loss of the model's own objective", yscale="log"
    )
    axes.legend()
    figure.savefig(workdir / "curves.png", dpi=150, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--glue", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--width", type=float, default=0.5, help="of the generator")
    parser.add_argument("--steps", type=int, default=10_000, help="of masked LM; sets the compute")
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    args.workdir.mkdir(parents=True, exist_ok=True)
    costs = {variant: flops(args, variant) for variant in VARIANTS}
    steps = {v: round(args.steps * costs["mlm"] / cost) for v, cost in costs.items()}
    rows = []
    for variant in VARIANTS:
        pretrain(args, variant, steps[variant])
        scores = {task: finetune(args, variant, task) for task in TASKS}
        rows.append(
            {"variant": variant, "flops": costs[variant], "steps": steps[variant], **scores}
        )
    (args.workdir / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = [
        "| objective | GFLOP a step | steps | SST-2 | CoLA | RTE |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [f"{row[t]['mean']:.3f} ± {row[t]['std'] or 0:.3f}" for t in TASKS]
        cells = [row["variant"], f"{row['flops'] / 1e9:.0f}", str(row["steps"]), *cells]
        table.append(f"| {' | '.join(cells)} |")
    (args.workdir / "results.md").write_text("\n".join(table) + "\n")
    curves(args.workdir)
    print("\n".join(table))


if __name__ == "__main__":
    main()
