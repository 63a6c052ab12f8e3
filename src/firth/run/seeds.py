"""Fine-tuning with several seeds: one run each, the best checkpoint of each, and their spread."""

import json
from pathlib import Path

import ml_collections

from firth.data.tasks.metrics import summary
from firth.distributed import job
from firth.errors import FirthError
from firth.run.workdir import check_folder
from firth.storage.local import read_json, write_text
from firth.training.journal import measured_at
from firth.training.leader_checkpoint import LeaderCheckpoints


def train_seeds(config, workdir: Path, train) -> dict[str, dict]:
    """Run `train` under `<workdir>/seed-<n>` for each of `config.seeds`, unless finished.

    Writes `summary.json` ({metric: mean, std, median, values} of what the runs have logged of their
    best checkpoints) and prints it. On small sets results differ by several points between seeds
    (google-research/bert issue 693), so one seed means little. Raises FirthError if `config.seeds`
    is no list of integers, and for a folder of something else.
    """
    try:
        seeds = [int(seed) for seed in str(config.seeds).split(",")]
    except ValueError:
        raise FirthError(f"seeds={config.seeds!r} should read 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise FirthError(f"seeds={config.seeds!r} names a seed twice; expected each once")
    check_folder(workdir, seeds=True)
    results = {}
    for seed in seeds:
        own = ml_collections.ConfigDict(config.to_dict())
        own.seed, own.seeds = seed, ""
        folder = workdir / f"seed-{seed}"
        train(own, folder)
        results[seed] = _measured(own, folder)
    metrics = dict.fromkeys(name for found in results.values() for name in found)
    summaries = {}
    for name in metrics:  # a value that is no number is not in a log
        values = {str(seed): found[name] for seed, found in results.items() if name in found}
        summaries[name] = summary(list(values.values())) | {"values": values}
    if not job.leads():
        return summaries
    write_text(workdir / "summary.json", json.dumps(summaries, indent=2) + "\n")
    width = max(map(len, metrics))
    print(f"{'best checkpoint of each seed':<{width}}  {'mean':>8} {'std':>8} {'median':>8}")
    for name, value in summaries.items():
        std = "-" if value["std"] is None else f"{value['std']:.4f}"
        print(f"{name:<{width}}  {value['mean']:8.4f} {std:>8} {value['median']:8.4f}")
    return summaries


def _measured(config, folder: Path) -> dict[str, float]:
    """{"<set>/<metric>": value} of the best checkpoint of a run, as it has logged them.

    Process 0 reads the folder; all processes must call this, and all get the values.
    """
    found = {}
    if job.leads():
        best = read_json(folder / "model.json")["best"]
        options = dict(config.checkpoint) | {"best": best}
        saves = LeaderCheckpoints(folder, **options, read_only=True)
        found = measured_at(folder, saves.best_step())
        saves.close()
    return json.loads(job.all_gather(json.dumps(found))[0])
