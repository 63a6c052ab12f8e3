"""Step time of pretraining: Firth against transformers' PyTorch model doing the same work.

    python experiments/step_time/bench.py [--recipe bert.py:mini] [--batch 32] [--length 128]

The sides take turns, each in a process of its own, on the same number of threads, with the
recipe's dropout, masking and AdamW: BERT with NSP, ALBERT with SOP, RoBERTa, DistilBERT's body and
ModernBERT with masked LM alone, ELECTRA with its generator and discriminator. PyTorch runs in fp32
and under bf16 autocast, as its users would (labels of -100 where nothing is predicted), and in fp32
once more with an allocator that keeps freed memory, as `firth train` sets it. Prints medians and
the median of the ratios of each round.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

from apart import Sides, answer

from firth.distributed.allocator import keep_freed_memory

THREADS = len(os.sched_getaffinity(0))
MASK = 103


def described(recipe, length, vocab):
    """(config, model section, objective) of a recipe at these sizes; `@mlm` swaps the objective."""
    import numpy as np

    from firth.recipe import read_recipe
    from firth.run.experiment import create_objective

    config = read_recipe(recipe)
    spec = dict(config.model) | dict(vocab_size=vocab, activation="gelu")  # fused on both sides
    if "pad_id" in spec:
        spec["pad_id"] = 1
    tokenizer = SimpleNamespace(
        vocab_size=vocab,
        pad_id=0,
        cls_id=101,
        sep_id=102,
        mask_id=MASK,
        special_ids=frozenset({0, 100, 101, 102, 103}),
        word_starts=np.ones(vocab, bool),
    )
    fields = dict(config.objective)
    if fields["name"] == "distill":  # the student's body alone; both sides would run the teacher
        own = ("masking", "static", "rate", "max_predictions", "mask_rate", "random_rate")
        fields = {name: fields[name] for name in own} | dict(name="mlm", masking="token")
    if "rate" in fields:
        fields["max_predictions"] = max(round(fields["rate"] * length), 1) + 1
    return config, spec, create_objective(fields, tokenizer, body=spec)


def firth_side(recipe, batch, length, vocab):
    """A function that runs one training step, on fixed clean tokens."""
    config, spec, objective = described(recipe, length, vocab)
    config.accumulate = 1
    return step_of(config, spec, objective, rows_of(batch, length, vocab))


def rows_of(batch, length, vocab):
    """A batch of fixed clean tokens, with all that any objective reads."""
    import numpy as np

    tokens = inputs(batch, length, vocab)
    return {
        "tokens": tokens,
        "segments": (np.arange(length) >= length // 2).astype(np.int32) + 0 * tokens,
        "mask": np.ones_like(tokens, bool),
        "next": np.arange(batch, dtype=np.int32) % 2,
        "example": np.arange(batch, dtype=np.uint32),
        "copy": np.zeros(batch, np.uint32),
    }


def program_of(config, spec, objective, rows):
    """The program of `firth train` on one device, with so many rows a batch."""
    import jax

    from firth.run.experiment import create_model
    from firth.run.program import lay_out
    from firth.training.partition import create_mesh

    config.batch_size, mesh = rows, create_mesh(devices=jax.devices()[:1])
    return lay_out(create_model(spec, objective), objective, config, config.steps, mesh)


def step_of(config, spec, objective, rows):
    """A function that runs one step of `firth train` on these rows and returns its loss."""
    import jax

    program = program_of(config, spec, objective, len(rows["tokens"]))
    holder, rows = [program.init()], jax.device_put(rows)

    def run():
        holder[0], measured, _ = program.step(holder[0], rows)
        return float(measured["loss"][0])

    return run


def torch_model(spec, heads, attention=None):
    """The transformers model of a Firth model section, by the tables that exchange uses.

    `attention` is transformers' way of computing it, "eager" or "sdpa"; None leaves the choice.
    """
    import torch
    import transformers

    from firth.weights.config import write_config
    from firth.weights.description import Description, complete_spec

    described_model = Description(complete_spec(spec, "bench"), tuple(heads), 2, None, False)
    config = write_config(described_model, {}, spec.get("pad_id", 0))
    name, kind = config.pop("architectures")[0], config.pop("model_type")
    torch.manual_seed(0)
    model_class = getattr(transformers, name)
    del kind
    ways = {"attn_implementation": attention} if attention else {}
    return model_class(model_class.config_class(**config, **ways)).train()


def torch_side(
    recipe, batch, length, vocab, bf16,
    *, device="cpu", attention=None, compiler=None, attention_dropout=None, wait=True,
):  # fmt: skip
    """The same with transformers and torch.optim.AdamW.

    `attention` is as in `torch_model`, `compiler` a backend of torch.compile. `attention_dropout`
    replaces the recipe's. Without `wait` a step returns its loss before the device has it.
    """
    import torch

    config, spec, objective = described(recipe, length, vocab)
    if attention_dropout is not None:
        spec["attention_dropout"] = attention_dropout
    torch.set_num_threads(THREADS)
    predictions = objective.masked.max_predictions if "rtd" in objective.heads else None
    predictions = (predictions or objective.max_predictions) - 1
    tokens = torch.from_numpy(inputs(batch, length, vocab)).long()
    labels = torch.full_like(tokens, -100)
    chosen = torch.stack([torch.randperm(length - 2)[:predictions] + 1 for _ in range(batch)])
    labels.scatter_(1, chosen, tokens.gather(1, chosen))
    masked = torch.where(labels >= 0, MASK, tokens)
    common = dict(attention_mask=torch.ones_like(tokens))
    if spec["family"] in ("bert", "albert", "electra"):
        common["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(batch, -1)
    pair = {"nsp": "next_sentence_label", "sop": "sentence_order_label"}
    extra = {pair[h]: torch.arange(batch) % 2 for h in objective.heads if h in pair}

    def on_device(heads, spec):
        return torch_model(spec, heads, attention).to(device)

    model = on_device(objective.heads, spec)
    parameters = list(model.parameters())
    if "rtd" in objective.heads:
        generator = on_device(("mlm",), objective.parts(spec)["generator"])
        generator.electra.embeddings = model.electra.embeddings
        generator.generator_lm_head.weight = model.electra.embeddings.word_embeddings.weight
        parameters = list({id(p): p for m in (model, generator) for p in m.parameters()}.values())
    tokens, labels, chosen, masked = (x.to(device) for x in (tokens, labels, chosen, masked))
    common, extra = ({k: x.to(device) for k, x in each.items()} for each in (common, extra))

    def losses():
        if "rtd" not in objective.heads:
            return model(input_ids=masked, labels=labels, **common, **extra).loss
        out = generator(input_ids=masked, labels=labels, **common)
        logits = out.logits.detach().gather(1, chosen[..., None].expand(-1, -1, vocab))
        noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
        filled = tokens.scatter(1, chosen, (logits + noise).argmax(-1))
        replaced = (filled != tokens).long()
        return out.loss + 50 * model(input_ids=filled, labels=replaced, **common).loss

    return torch_step(
        losses, parameters, config, bf16=bf16, device=device, compiler=compiler, wait=wait
    )


def torch_step(losses, parameters, config, *, bf16, device="cpu", compiler=None, wait=True):
    """A function that runs one step on the loss that `losses` computes; options as `torch_side`."""
    import torch

    rate = config.optimizer.weight_decay
    fused = {"fused": True} if device != "cpu" else {}
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=rate, **fused)
    forward = torch.compile(losses, backend=compiler) if compiler else losses

    def run():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = forward()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach()) if wait else loss.detach()

    return run


def inputs(batch, length, vocab):
    """Token ids [batch, length] with [CLS] and [SEP] in place."""
    import numpy as np

    tokens = np.random.default_rng(0).integers(1000, vocab, (batch, length), dtype=np.int32)
    tokens[:, 0], tokens[:, -1], tokens[:, length // 2 - 1] = 101, 102, 102
    return tokens


def timed(sides, rounds):
    """{side: seconds of each round}, the sides in turn, each warmed up by two steps."""
    times = {name: [] for name in sides}
    for run in sides.values():
        run()
        run()
    for _ in range(rounds):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return times


SIDES = ("firth", "torch fp32", "torch bf16", "torch fp32, memory kept")


def serve(name, shape):
    """Be one side: a step for each line of stdin, whose seconds are a line of stdout."""
    if name == "firth" or name.endswith("memory kept"):
        keep_freed_memory()
    run = firth_side(*shape) if name == "firth" else torch_side(*shape, bf16="bf16" in name)
    run()
    run()
    answer(lambda _: run(), "ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default="bert.py:mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = (args.recipe, args.batch, args.length, args.vocab)
    if args.side:
        return serve(args.side, shape)
    sides = Sides(__file__, SIDES, sys.argv[1:])
    times = sides.in_turn(args.rounds)
    sides.close()
    load = os.getloadavg()[0]
    print(f"{args.recipe}, {args.batch} x {args.length}, {THREADS} threads, load {load:.1f}")
    for name, values in times.items():
        ratios = [t / f for t, f in zip(values, times["firth"], strict=True)]
        seconds = f"median {statistics.median(values):.3f} s  min {min(values):.3f}"
        print(f"{name:<24} {seconds}  / firth {statistics.median(ratios):.2f}")
    print(json.dumps({k: [round(v, 4) for v in t] for k, t in times.items()}))


if __name__ == "__main__":
    main()
