"""`firth train`: pretrain or fine-tune from a recipe.

firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/
"""

from firth import recipe
from firth.commands.arguments import check_options
from firth.distributed import job, watch
from firth.run.seeds import train_seeds
from firth.train import train
from firth.training.goodput import process_start
from firth.training.remote_workdir import local_workdir

OPTIONS = ("--config", "--workdir", "--help", "-config", "-workdir", "-help", "-h")


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
        config, workdir = recipe.from_command_line(rest, prog="firth train")
        with local_workdir(workdir) as workdir:
            if config.get("seeds"):
                train_seeds(config, workdir, train)
            else:
                train(config, workdir, process_start())
    return 0
