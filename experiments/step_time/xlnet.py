"""Step time of XLNet's pretraining: beside transformers' PyTorch model, and beside BERT's.

    python experiments/step_time/xlnet.py [--size mini] [--batch 8] [--length 512]

Firth's step samples spans and orders, runs both streams with memory, in both directions, with
dropout and AdamW. PyTorch runs `XLNetLMHeadModel` in fp32 with `perm_mask`, `target_mapping` and
memories of the same shapes, drawn beforehand. BERT is Firth's own, of the same body and length with
15 % of the tokens masked. All three run in this process, in turn. Prints medians and the medians
of the ratios of each round.
"""

import argparse
import json
import os
import statistics

from bench import THREADS, described, firth_side, inputs, timed, torch_step


def torch_side(size, batch, length, vocab, *, bf16=False, device="cpu", compiler=None, wait=True):
    """The same work with transformers and torch.optim.AdamW; options as `bench.torch_side`."""
    import torch
    from transformers import XLNetConfig, XLNetLMHeadModel

    config, spec, objective = described(f"xlnet.py:{size},length={length}", length, vocab)
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    model = XLNetLMHeadModel(
        XLNetConfig(
            vocab_size=vocab,
            d_model=spec["hidden_size"],
            n_layer=spec["num_layers"],
            n_head=spec["num_heads"],
            d_inner=spec["intermediate_size"],
            ff_activation="gelu",
            dropout=spec["dropout"],
            mem_len=objective.memory,
            reuse_len=objective.reuse,
            bi_data=True,
            use_mems_train=True,
        )
    )
    model = model.train().to(device)
    tokens = torch.from_numpy(inputs(batch, length, vocab)).long()
    segments = (torch.arange(length) >= length // 2).long().expand(batch, -1)
    predicted = objective.max_predictions
    chosen = torch.stack([torch.randperm(length)[:predicted] for _ in range(batch)])
    rank = torch.zeros(batch, length, dtype=torch.long)
    rank.scatter_(1, chosen, 1 + torch.stack([torch.randperm(predicted) for _ in range(batch)]))
    blocked = ((rank[:, None] >= rank[:, :, None]) & (rank[:, None] > 0)).float()
    mapping = torch.nn.functional.one_hot(chosen, length).float()
    memory = torch.zeros(objective.memory, batch, spec["hidden_size"], device=device)
    memories = [memory] * spec["num_layers"]
    given = dict(
        input_ids=tokens,
        token_type_ids=segments,
        perm_mask=blocked,
        target_mapping=mapping,
        labels=tokens.gather(1, chosen),
    )
    given = {name: value.to(device) for name, value in given.items()}

    def losses():
        nonlocal memories
        out = model(**given, mems=memories, use_mems=True)
        memories = [memory.detach() for memory in out.mems]
        return out.loss

    parameters = list(model.parameters())
    return torch_step(
        losses, parameters, config, bf16=bf16, device=device, compiler=compiler, wait=wait
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    shape = (args.batch, args.length, args.vocab)
    bert = f"bert.py:{args.size},length={args.length},view=packed"
    sides = {
        "xlnet": firth_side(f"xlnet.py:{args.size},length={args.length}", *shape),
        "bert": firth_side(bert, *shape),
        "torch xlnet": torch_side(args.size, *shape),
    }
    times = timed(sides, args.rounds)
    load = os.getloadavg()[0]
    print(f"{args.size}, {args.batch} x {args.length}, {THREADS} threads, load {load:.1f}")
    for name, values in times.items():
        print(f"{name:<12} median {statistics.median(values):.3f} s  min {min(values):.3f}")
    for over, under in (("torch xlnet", "xlnet"), ("xlnet", "bert")):
        pairs = zip(times[over], times[under], strict=True)
        print(f"{over} / {under}: median ratio {statistics.median(a / b for a, b in pairs):.2f}")
    print(json.dumps({k: [round(t, 4) for t in v] for k, v in times.items()}))


if __name__ == "__main__":
    main()
