"""The training step of Zaremba's networks: Firth beside PyTorch's `nn.LSTM`, on the same shapes.

    python experiments/lstm_step/bench.py [--size medium] [--rounds 5] [--steps 4]

Both sides train on the same random batches with the settings of `lstm.py`: embeddings, two layers
of LSTM with dropout on vertical edges, a softmax over 10,000 words, the whole backward pass, the
norm of the gradient clipped, an update by plain gradient descent, and the state passed on. Both run
in float32, in turn, each in a process of its own, on the threads that this one may use (`taskset`);
PyTorch once more with an allocator that keeps freed memory, as `firth train` sets it. Without
dropout all begin from the same weights, and the losses after each step are printed side by side.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from apart import Sides, answer

from firth.distributed.allocator import keep_freed_memory

SIDES = ("firth", "torch", "torch, memory kept")
THREADS = len(os.sched_getaffinity(0))


def firth_side(config, batches):
    """(initial parameters, a function of a number of steps: their losses)."""
    import jax

    from firth.run.outline import outline
    from firth.run.program import lay_out
    from firth.training.partition import create_mesh

    run, mesh = outline(config), create_mesh(config.mesh)
    program = lay_out(run.model, run.objective, config, run.steps, mesh)
    state = program.init()
    initial = jax.device_get(state.params)
    batches = [jax.device_put({n: b[n] for n in run.batch}) for b in batches]

    def steps(number):
        nonlocal state
        found = []
        for i in range(number):
            state, measured, _ = program.step(state, batches[i % len(batches)])
            found.append(measured["loss"][0])
        return [float(loss) for loss in found]

    return initial, steps


def torch_side(config, initial, batches):
    """The same in PyTorch, from the same parameters."""
    import torch

    torch.set_num_threads(THREADS)
    c, rate = config.model, config.schedule.lr
    lstm = torch.nn.LSTM(c.hidden_size, c.hidden_size, c.num_layers, dropout=c.dropout)
    word = torch.nn.Embedding(c.vocab_size, c.hidden_size)
    softmax = torch.nn.Linear(c.hidden_size, c.vocab_size)
    drop = torch.nn.Dropout(c.dropout)
    with torch.no_grad():
        word.weight.copy_(torch.tensor(initial["encoder"]["word"]["embedding"]))
        softmax.weight.copy_(torch.tensor(initial["lm"]["softmax"].T))
        softmax.bias.copy_(torch.tensor(initial["lm"]["bias"]))
        for i in range(c.num_layers):
            own = initial["encoder"]["stack"][f"layer_{i}"]
            for name, kernel in (("ih", own["input"]), ("hh", own["recurrent"])):
                rows = torch.tensor(kernel).flatten(1).T
                getattr(lstm, f"weight_{name}_l{i}").copy_(rows)
            getattr(lstm, f"bias_ih_l{i}").copy_(torch.tensor(own["bias"].ravel()))
            # Firth has one bias for a layer; a second that learns would double the rate of the sum.
            getattr(lstm, f"bias_hh_l{i}").zero_().requires_grad_(False)
    parts = torch.nn.ModuleList([word, lstm, softmax])
    optimizer = torch.optim.SGD([p for p in parts.parameters() if p.requires_grad], lr=rate)
    texts = [torch.tensor(b["tokens"].T.copy()).long() for b in batches]
    targets = []
    for tokens, batch in zip(texts, batches, strict=True):
        following = torch.tensor(batch["following"]).long()
        targets.append(torch.cat([tokens[1:], following[None]]))
    state = None

    def steps(number):
        nonlocal state
        found = []
        for i in range(number):
            optimizer.zero_grad()
            out, state = lstm(drop(word(texts[i % len(texts)])), state)
            state = tuple(part.detach() for part in state)
            logits = softmax(drop(out)).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, targets[i % len(texts)].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parts.parameters(), config.optimizer.clip_norm)
            optimizer.step()
            found.append(loss.item())
        return found

    return steps


def side(name, size, dropout, words):
    """A function of a number of steps that runs them and returns their losses."""
    import numpy as np

    from firth import recipe

    config = recipe.read_recipe(f"lstm.py:{size}")
    changes = {"model.vocab_size": words}
    if not dropout:
        names = ("dropout", "embedding_dropout", "output_dropout")
        changes |= {f"model.{name}": 0.0 for name in names}
    config = recipe.with_fields(config, changes)
    rng, rows, length = np.random.default_rng(0), config.batch_size, config.data.length
    batches = []
    for number in range(4):
        text = rng.integers(0, words, (rows, length + 1)).astype(np.int32)
        batches.append(
            dict(
                tokens=text[:, :-1],
                following=text[:, -1],
                segments=np.zeros((rows, length), np.int32),
                mask=np.ones((rows, length), bool),
                example=np.arange(rows, dtype=np.uint32),
                copy=np.zeros(rows, np.uint32),
                reset=np.full(rows, number < 0),
            )
        )
    initial, ours = firth_side(config, batches)
    return ours if name == "firth" else torch_side(config, initial, batches)


def serve(name, size, words, steps):
    """Be one side: so many steps for each line of stdin, whose seconds are a line of stdout."""
    if name != "torch":
        keep_freed_memory()
    losses = side(name, size, False, words)(3)
    run = side(name, size, True, words)
    run(2)  # compile
    answer(lambda _: run(steps), "  ".join(f"{loss:.5f}" for loss in losses))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="medium")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--words", type=int, default=10_000)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return serve(args.side, args.size, args.words, args.steps)
    print(f"lstm.py:{args.size}, {args.words:,} words, {THREADS} threads")
    sides = Sides(__file__, SIDES, sys.argv[1:])
    for name, losses in sides.said.items():
        print(f"{name}, losses without dropout: {losses}")
    times = sides.in_turn(args.rounds)
    sides.close()
    for name, values in times.items():
        steps = [1000 * seconds / args.steps for seconds in values]
        ratios = [t / f for t, f in zip(values, times["firth"], strict=True)]
        found = f"{statistics.median(steps):.1f} ms a step (from {min(steps):.1f})"
        print(f"{name:<18} {found}  / firth {statistics.median(ratios):.2f}")
    print(f"1.5 expected, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
