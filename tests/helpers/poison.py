"""`firth train` with poison: the loss of some batches is multiplied, by NaN say, or they are cut.

python tests/helpers/poison.py '{"25": "nan"}' 0 0 ARGUMENTS    # batch 25 is poisoned
python tests/helpers/poison.py '{}' 20 26 ARGUMENTS             # batches 20 to 25 never existed
"""

import dataclasses
import json
import sys

import numpy as np

from firth.run import experiment


class Poisoned:
    """An objective whose training loss is multiplied by one plus the batch's poison."""

    def __init__(self, objective):
        self._objective = objective

    def __getattr__(self, name):
        return getattr(self._objective, name)

    def losses(self, model, batch, train):
        """The objective's own, the first term poisoned."""
        sums, *rest = self._objective.losses(model, batch, train=train)
        if train:
            term = next(iter(self._objective.coefficients))
            sums = sums | {term: sums[term] * (1 + batch["poison"].mean())}
        return sums, *rest


def poison(build, poisons: dict[int, float], without: range):
    """`experiment.build`, but with poisons ({batch: poison}), and with batches cut out."""

    def built(config, mesh, cache=None):
        run = build(config, mesh, cache)

        def batch(step):
            number = step + len(without) if step >= without.start else step
            rows = run.batch(number)
            much = np.full(len(rows["tokens"]), poisons.get(number, 0.0), np.float32)
            return rows | {"poison": much}

        return dataclasses.replace(run, batch=batch, objective=Poisoned(run.objective))

    return built


def program(poisons: dict[int, float], without=range(0)) -> tuple[str, ...]:
    """What to give to python before the arguments of `firth train`."""
    written = {str(number): str(value) for number, value in poisons.items()}
    return (__file__, json.dumps(written), str(without.start), str(without.stop))


if __name__ == "__main__":
    from firth.cli import main

    read = {int(number): float(value) for number, value in json.loads(sys.argv[1]).items()}
    cut = range(int(sys.argv[2]), int(sys.argv[3]))
    experiment.build = poison(experiment.build, read, cut)
    sys.exit(main(["train", *sys.argv[4:]]))
