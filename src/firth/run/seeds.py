"""Fine-tuning with several seeds: one run each, the best checkpoint of each, and their spread."""

import json
from pathlib import Path

import ml_collections

from firth.data.tasks.metrics import summary
from firth.distributed import job
from firth.errors import FirthError
from firth.run.evaluator import evaluate
from firth.run.workdir import check_folder
from firth.storage.local import write_text
from firth.training.remote_workdir import is_local_copy


def train_seeds(config, workdir: Path, train) -> dict[str, dict]:
    """Run `train` under `<workdir>/seed-<n>` for each of `config.seeds`, unless finished.

    Evaluates the best checkpoint of each run, writes `summary.json` ({metric: mean, std, median,
    values}) and prints it. On small sets results differ by several points between seeds
    (google-research/bert issue 693), so one seed means little. Raises FirthError if `config.seeds`
    is no list of integers, for a folder of something else, and for several
    processes with a workdir at a URL.
    """
    try:
        seeds = [int(seed) for seed in str(config.seeds).split(",")]
    except ValueError:
        raise FirthError(f"seeds={config.seeds!r} should read 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise FirthError(f"seeds={config.seeds!r} names a seed twice; expected each once")
    check_folder(workdir, seeds=True)
    if job.count() > 1 and is_local_copy(workdir):
        raise FirthError(
            f"seeds={config.seeds} at a URL: all processes evaluate the checkpoints, but only "
            "process 0 has them; give a --workdir that all hosts mount, or use one process"
        )
    results = {}
    for seed in seeds:
        own = ml_collections.ConfigDict(config.to_dict())
        own.seed, own.seeds = seed, ""
        folder = workdir / f"seed-{seed}"
        train(own, folder)
        results[seed] = evaluate(folder)
    metrics = [name for name in results[seeds[0]] if name != "step"]
    summaries = {
        name: summary([results[seed][name] for seed in seeds])
        | {"values": {str(seed): results[seed][name] for seed in seeds}}
        for name in metrics
    }
    if not job.leads():
        return summaries
    write_text(workdir / "summary.json", json.dumps(summaries, indent=2) + "\n")
    width = max(map(len, metrics))
    print(f"{'best checkpoint of each seed':<{width}}  {'mean':>8} {'std':>8} {'median':>8}")
    for name, value in summaries.items():
        std = "-" if value["std"] is None else f"{value['std']:.4f}"
        print(f"{name:<{width}}  {value['mean']:8.4f} {std:>8} {value['median']:8.4f}")
    return summaries
