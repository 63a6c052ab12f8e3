"""The cost of a run before it runs: parameters, FLOPs, memory, days, money, energy, emissions.

    firth plan --config bert.py:base --chips v5e:16
    firth plan --config bert.py:base --config electra.py:base --chips v5e:16 --chart costs.png

It trains nothing and reads no data. Counts follow from the recipe exactly. Costs follow from
assumptions, which a plan prints beside them.
"""

import dataclasses

from firth.planning import cost, flops, memory
from firth.planning.hardware import Chip
from firth.planning.papers import electra_rule
from firth.run.outline import outline
from firth.training.partition import AXES, mesh_sizes

FREEZES = ("FLOPs as if nothing were frozen (optimizer.freeze)",)


def plan(config, hardware: list[tuple[Chip, int]], assumed: cost.Assumptions) -> dict:
    """The plan of a pretraining recipe on each of some sets of chips; plain numbers and strings.

    Raises FirthError for a recipe of fine-tuning, for a mesh that does not cover the chips, and for
    a batch that they do not divide.
    """
    return planned(outline(config), hardware, assumed)


def planned(outlined, hardware: list[tuple[Chip, int]], assumed: cost.Assumptions) -> dict:
    """The same of an outline."""
    config = outlined.config
    update = flops.update_flops(outlined)
    run = outlined.steps * sum(update.values())
    rows, length = outlined.batch["tokens"].shape
    programs = [memory.laid_out(outlined, count) for _, count in hardware]
    return {
        "steps": outlined.steps,
        "rows": rows,
        "length": length,
        "tokens": outlined.steps * rows * length,
        "assumed": [*outlined.assumed, *(FREEZES if config.optimizer.freeze else ())],
        "parameters": memory.parameters(outlined, programs[0].state.params),
        "flops": {
            "update": update,
            "run": run,
            "recomputed": outlined.steps * flops.recomputed(outlined),
        },
        "electra_rule": _by_electra(outlined),
        "hardware": [
            {
                "chip": chip.name,
                "chips": count,
                "accelerator_type": chip.accelerator_type(count),
                "mesh": dict(zip(AXES, mesh_sizes(config.mesh, count), strict=True)),
                "device_bytes": memory.device_bytes(outlined, program),
                "hbm": chip.hbm,
                **dataclasses.asdict(costs := cost.estimate(run, chip, count, assumed)),
                "compared": cost.comparison(costs.kg),
                "assumed": cost.stated(chip, assumed),
            }
            for (chip, count), program in zip(hardware, programs, strict=True)
        ],
    }


def _by_electra(outlined) -> dict | None:
    """FLOPs by the ELECTRA paper's rule, and its figure for a model with these settings."""
    settings = electra_rule.of_outline(outlined)
    if settings is None:
        return None
    model, figure = electra_rule.printed(settings) or (None, None)
    return {
        "flops": electra_rule.train_flops(settings),
        "model": model,
        "printed": figure,
        "note": electra_rule.NOTES.get(model),
    }
