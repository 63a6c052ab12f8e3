"""Step time of BERT pretraining: Firth against transformers' PyTorch model, same shapes.

    python experiments/step_time/bench.py [--size mini] [--batch 32] [--length 128] [--rounds 7]

Both sides run in this one process, in turn, on the same number of threads: MLM + NSP, dropout 0.1,
AdamW, 20 predictions a row. PyTorch runs in fp32 and under bf16 autocast, as its users would
(`BertForPreTraining` with labels of -100 where nothing is predicted). Prints medians and the
median of the ratios of each round.
"""

import argparse
import json
import os
import statistics
import time

THREADS = len(os.sched_getaffinity(0))


def firth_side(size, batch, length, predictions, vocab):
    """A function that runs one training step, on fixed clean tokens."""
    import jax
    import numpy as np

    from firth.models.model import create
    from firth.objectives.mlm import MaskedLM
    from firth.recipe import read_recipe
    from firth.train import make_step
    from firth.training import optim
    from firth.training.state import TrainState

    config = read_recipe(f"bert.py:{size}")
    spec = dict(config.model) | dict(vocab_size=vocab, activation="gelu")
    objective = MaskedLM(103, vocab, (0, 101, 102), max_predictions=predictions, pairs="nsp")
    model = create(spec, objective.heads)
    optimizer = optim.create_optimizer(config.optimizer)
    schedule = optim.create_schedule(config.schedule, 1000)
    tokens = inputs(batch, length, vocab)
    init = jax.jit(lambda key: TrainState.create(model.init(key, tokens[:1])["params"], optimizer))
    state = init(jax.random.key(0))
    step = jax.jit(make_step(model, objective, optimizer, schedule, config), donate_argnums=0)
    rows = jax.device_put(
        {
            "tokens": tokens,
            "segments": (np.arange(length) >= length // 2).astype(np.int32) + 0 * tokens,
            "mask": np.ones_like(tokens, bool),
            "next": np.arange(batch, dtype=np.int32) % 2,
            "example": np.arange(batch, dtype=np.uint32),
            "copy": np.zeros(batch, np.uint32),
        }
    )
    holder = [state]

    def run():
        holder[0], measured, _ = step(holder[0], rows)
        return float(measured["loss"][0])

    return run


def torch_side(size, batch, length, predictions, vocab, bf16):
    """The same with transformers and torch.optim.AdamW."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    from firth.models.bert import size as dimensions

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    d = dimensions(size)
    model = BertForPreTraining(
        BertConfig(
            vocab_size=vocab,
            hidden_size=d["hidden_size"],
            num_hidden_layers=d["num_layers"],
            num_attention_heads=d["num_heads"],
            intermediate_size=d["intermediate_size"],
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    tokens = torch.from_numpy(inputs(batch, length, vocab)).long()
    labels = torch.full_like(tokens, -100)
    for row in range(batch):
        chosen = torch.randperm(length - 2)[:predictions] + 1
        labels[row, chosen] = tokens[row, chosen]
    masked = torch.where(labels >= 0, 103, tokens)
    segments = (torch.arange(length) >= length // 2).long().expand(batch, -1)
    attention = torch.ones_like(tokens)
    following = torch.arange(batch) % 2

    def run():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            out = model(
                input_ids=masked,
                attention_mask=attention,
                token_type_ids=segments,
                labels=labels,
                next_sentence_label=following,
            )
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(out.loss.detach())

    return run


def inputs(batch, length, vocab):
    """Token ids [batch, length] with [CLS] and [SEP] in place."""
    import numpy as np

    tokens = np.random.default_rng(0).integers(1000, vocab, (batch, length), dtype=np.int32)
    tokens[:, 0], tokens[:, -1], tokens[:, length // 2 - 1] = 101, 102, 102
    return tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    shape = (args.size, args.batch, args.length, args.predictions, args.vocab)
    sides = {
        "firth": firth_side(*shape),
        "torch fp32": torch_side(*shape, bf16=False),
        "torch bf16": torch_side(*shape, bf16=True),
    }
    times = {name: [] for name in sides}
    for run in sides.values():
        run()
        run()
    for _ in range(args.rounds):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    load = os.getloadavg()[0]
    print(f"BERT-{args.size}, {args.batch} x {args.length}, {THREADS} threads, load {load:.1f}")
    for name, values in times.items():
        print(f"{name:<12} median {statistics.median(values):.3f} s  min {min(values):.3f}")
    for name in ("torch fp32", "torch bf16"):
        ratios = [t / f for t, f in zip(times[name], times["firth"], strict=True)]
        print(f"{name} / firth: median ratio {statistics.median(ratios):.2f}")
    print(json.dumps({k: [round(v, 4) for v in t] for k, t in times.items()}))


if __name__ == "__main__":
    main()
