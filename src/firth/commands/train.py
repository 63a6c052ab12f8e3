"""`firth train`: pretrain or fine-tune from a recipe.

firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/
"""

import importlib
import sys

from firth import recipe
from firth.commands.arguments import check_options, example
from firth.display.annotations import comments_of
from firth.distributed import job, watch
from firth.recipe import SHIPPED, flatten
from firth.run.seeds import train_seeds
from firth.train import train
from firth.training.goodput import process_start
from firth.training.remote_workdir import local_workdir

OPTIONS = ("--config", "--workdir", "--help", "-config", "-workdir", "-help", "-h")

# Fields that people change most, and of those without a common default what they mean.
OFTEN = {
    "steps": "updates of the whole schedule",
    "batch_size": "rows of an update, over all devices",
    "schedule.lr": "the peak of the learning rate",
    "schedule.warmup": "share of the steps before the peak",
    "model.dropout": "also model.attention_dropout",
    "optimizer.weight_decay": "of all but norms and biases, if the recipe does not decay them too",
}
COMMON = ("data.store", "data.heldout", "accumulate", "model.dtype", "model.remat", "init_from")
COMMON += ("seed", "log_every", "eval.every", "checkpoint.minutes", "checkpoint.keep", "resume")


def fields_help() -> str:
    """The part of the help about fields: their defaults and their comments in common.py."""
    common = importlib.import_module("firth.configs.common")  # recipes are no part of the package
    every = common.pretraining(steps=0, batch_size=0, model=common.model(""), data=common.data())
    values, said = flatten(every), comments_of(SHIPPED / "common.py", "pretraining")
    said |= comments_of(SHIPPED / "common.py", "model", "model.")
    said |= comments_of(SHIPPED / "common.py", "data", "data.")
    lines = ["", "fields that people change most (all of a recipe's: firth recipes bert.py:mini):"]
    for name, what in OFTEN.items():
        lines.append(f"  --config.{name + '=...':<28} {what}")
    for name in COMMON:
        lines.append(f"  --config.{f'{name}={values[name]}':<28} {said.get(name, '')}".rstrip())
    lines.append("Where no default stands here, the recipe sets it.")
    return "\n".join(["", *lines, "", example("train")])


def main(argv: list[str]) -> int:
    """`firth train`."""
    fields = ("--config.", "-config.")
    check_options(
        [item for item in argv if not item.startswith(fields)],
        (*OPTIONS, *(f"--{name}" for name in job.OPTIONS)),
    )
    place, rest = job.from_command_line(argv)
    if len(rest) > 1:  # --help alone needs no other process
        job.join(place)
    with watch.together(patience=place.patience, stall=place.stall):
        config, workdir = recipe.from_command_line(rest, prog="firth train", more=fields_help)
        with local_workdir(workdir) as workdir:
            if config.get("seeds"):
                train_seeds(config, workdir, train)
            else:
                own = sys.argv[1:] == ["train", *argv]  # this process is this command alone
                train(config, workdir, process_start() if own else None)
    return 0
