"""What does ELECTRA's step cost beside the steps of its two bodies?

    python experiments/step_time/pair.py [--recipe electra.py:mini] [--batch 32] [--length 128]

In turn, in one process: the step of the pair; masked LM of the generator's body alone, on its own
embeddings; and replaced-token detection of the discriminator alone, on text that was replaced at
random beforehand. Each has its own optimiser. Prints medians and the ratio of the first to the sum.
"""

import argparse
import dataclasses
import statistics

from bench import described, inputs, step_of, timed


@dataclasses.dataclass(frozen=True)
class Detection:
    """Replaced-token detection of text that is corrupted already."""

    objective: object
    heads = ("rtd",)
    coefficients = {"model": 50.0}  # noqa: RUF012 - never written

    def corrupt(self, batch, key):
        """Nothing is left to do."""
        del key
        return batch

    def weights(self, batch):
        """Real tokens."""
        return {"model": batch["mask"].sum(dtype="float32")}

    def losses(self, model, batch, *, train):
        """The discriminator's part of the pair's losses."""
        replaced = batch["tokens"] != batch["original"]
        out = model.encoder(batch["tokens"], batch["segments"], batch["mask"], train=train)
        loss, measured = self.objective._detect(model, out.last, None, replaced, batch, train)
        return {"model": loss}, measured


def main():
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default="electra.py:mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    config, spec, objective = described(args.recipe, args.length, args.vocab)
    tokens = inputs(args.batch, args.length, args.vocab)
    rng = np.random.default_rng(1)
    drawn = rng.integers(1000, args.vocab, tokens.shape, dtype=np.int32)
    rows = {
        "tokens": tokens,
        "segments": np.zeros_like(tokens),
        "mask": np.ones_like(tokens, bool),
        "example": np.arange(args.batch, dtype=np.uint32),
        "copy": np.zeros(args.batch, np.uint32),
    }
    filled = rows | {
        "tokens": np.where(rng.random(tokens.shape) < 0.15, drawn, tokens),
        "original": tokens,
    }
    generator = objective.parts(spec)["generator"] | {"embedding_size": spec["embedding_size"]}
    sides = {
        "pair": step_of(config, spec, objective, rows),
        "generator": step_of(config, generator, objective.masked, rows),
        "discriminator": step_of(config, spec, Detection(objective), filled),
    }
    times = timed(sides, args.rounds)
    for name, values in times.items():
        print(f"{name:<14} median {statistics.median(values):.3f} s")
    pairs = zip(*times.values(), strict=True)
    ratios = [pair / (one + two) for pair, one, two in pairs]
    print(f"pair / (generator + discriminator): median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
