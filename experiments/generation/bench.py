"""Time per token of generation: Firth against transformers' `generate`, early and late.

    python experiments/generation/bench.py [--size small] [--batch 1 16] [--tokens 512]

Both sides write the same number of tokens after the same prompts with the same random GPT-2 body,
greedily and in float32, in this one process, in turn, on the same number of threads, each with its
key-value cache. The end-of-text token is left out, so that nothing ends early. Attention reads more
as the text grows: the time per token is also given for tokens 64 to 128 and for the last 64.
"""

import argparse
import json
import os
import statistics
import time
from types import SimpleNamespace

THREADS = len(os.sched_getaffinity(0))
PROMPT = 32


def torch_model(size, vocab, positions):
    """transformers' GPT-2 of this size, random."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=vocab,
        n_positions=positions,
        n_embd=size["hidden_size"],
        n_layer=size["num_layers"],
        n_head=size["num_heads"],
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def firth_encoder(model, size, vocab, positions):
    """What `firth.inference.generate` needs of an encoder, with the weights of `model`."""
    import flax.traverse_util
    import jax

    from firth.models.model import create
    from firth.weights.description import Description, complete_spec
    from firth.weights.names import read_tensors

    spec = dict(family="gpt2", vocab_size=vocab, max_length=positions) | size
    tensors = {k: v.numpy() for k, v in model.state_dict().items()}
    described = Description(complete_spec(spec, "bench"), ("lm",), 2, None, False)
    config = dict(architectures=["GPT2LMHeadModel"])
    described, flat, _ = read_tensors(tensors, described, config, "bench")
    return SimpleNamespace(
        model=create(spec, described.heads),
        params=jax.device_put(flax.traverse_util.unflatten_dict(flat, sep="/")),
        saved=SimpleNamespace(spec=spec),
        max_length=positions,
        tokenizer=SimpleNamespace(vocab_size=vocab, vocab=["x"] * vocab, end_id=None),
    )


def firth_side(encoder, prompts, tokens):
    """A function that writes `tokens` tokens; returns them and the time after each block."""
    import numpy as np

    from firth.inference.decode import blocks
    from firth.inference.generate import BLOCK

    settings = dict(temperature=1.0, top_k=0, top_p=1.0, greedy=True)
    numbers = [(row, 0) for row in range(len(prompts))]

    def run():
        block = blocks(encoder, list(prompts), numbers, tokens, 0, settings, BLOCK)
        next(block)
        found, times = [], [time.perf_counter()]
        for _ in range(0, tokens, BLOCK):
            found.append(block.send(np.ones(len(prompts), bool)))
            times.append(time.perf_counter())
        return np.concatenate(found, axis=1), times

    return run


def torch_side(model, prompts, tokens):
    """The same with transformers."""
    import torch

    ids = torch.tensor(prompts).long().to(model.device)
    options = dict(max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)

    def run():
        with torch.inference_mode():
            found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return found[:, ids.shape[1] :].cpu().numpy(), []

    return run


def measure(sides, rounds):
    """({side: seconds of each round}, {side: what its last round returned}), in turn."""
    seconds, last = {name: [] for name in sides}, {}
    for run in sides.values():
        run()
    for _ in range(rounds):
        for name, run in sides.items():
            began = time.perf_counter()
            last[name] = run()
            seconds[name].append(time.perf_counter() - began)
    return seconds, last


def main():
    import numpy as np

    from firth.inference.generate import BLOCK
    from firth.models.gpt2 import size

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.tokens % BLOCK or args.tokens < 128:
        parser.error(f"--tokens should be a multiple of {BLOCK}, at least 128")
    dimensions, positions = size(args.size), 64 + args.tokens
    model = torch_model(dimensions, args.vocab, positions)
    encoder = firth_encoder(model, dimensions, args.vocab, positions)
    print(f"gpt2 {args.size}, {PROMPT} + {args.tokens} tokens, {THREADS} threads")
    for batch in args.batch:
        prompts = np.random.default_rng(0).integers(0, args.vocab, (batch, PROMPT), np.int32)
        sides = {
            "firth": firth_side(encoder, prompts, args.tokens),
            "torch": torch_side(model, prompts, args.tokens),
        }
        seconds, last = measure(sides, args.rounds)
        (ours, times), (theirs, _) = last["firth"], last["torch"]
        ms = [1000 * b / BLOCK for b in np.diff(times)]
        few = 64 // BLOCK
        early, late = statistics.median(ms[few : 2 * few]), statistics.median(ms[-few:])
        ratios = [t / f for t, f in zip(seconds["torch"], seconds["firth"], strict=True)]
        per_token = {
            name: 1000 * statistics.median(values) / args.tokens for name, values in seconds.items()
        }
        load = os.getloadavg()[0]
        print(f"batch {batch}, load {load:.1f}: {(ours == theirs).mean():.1%} of tokens equal")
        for name, value in per_token.items():
            print(f"  {name:<6} {value:.2f} ms a token, {1000 * batch / value:.0f} tokens/s")
        print(f"  torch / firth: median ratio {statistics.median(ratios):.2f}")
        print(f"  firth, tokens 64 to 128: {early:.2f} ms, last 64: {late:.2f} ms a token")
        print(json.dumps({k: [round(v, 4) for v in t] for k, t in seconds.items()}))


if __name__ == "__main__":
    main()
