"""ELMo's character CNN (small) beside PyTorch, and what reading each word once gains.

    python experiments/elmo/bench.py [--words 256] [--rounds 5]

Every round runs both sides in turn, in this process and on the same threads, on the same words and
weights: words of English text in its order, 50 characters each. PyTorch has conv1d, maximum,
ReLU, one highway layer and the projection, without gradient. Firth runs three ways: on all 50
places; on the places that the longest word of a batch needs, which give the same maxima; and as
`firth.load` does, each distinct word once, with its look-up. The vectors are compared first.
"""

import argparse
import json
import lzma
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
THREADS = len(os.sched_getaffinity(0))
DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))


def text(words: int) -> list[str]:
    """The first so many words of the Wikipedia sample, cut at white space."""
    found = []
    with lzma.open(DATA / "wikipedia_en_sample" / "articles.jsonl.xz", "rt") as file:
        for line in file:
            found += json.loads(line)["text"].split()
            if len(found) >= words:
                return found[:words]
    raise SystemExit(f"the sample has only {len(found)} words")


def torch_module(torch, params):
    """The same network in PyTorch, with these parameters."""

    class CharacterCNN(torch.nn.Module):
        def __init__(self):
            super().__init__()
            to = lambda x: torch.nn.Parameter(torch.tensor(x.copy()))  # noqa: E731
            self.table = to(params["embedding"])
            count = sum(name.endswith("_kernel") for name in params)
            kernels = [params[f"filters_{i}_kernel"].transpose(2, 1, 0) for i in range(count)]
            self.kernels = torch.nn.ParameterList(to(kernel) for kernel in kernels)
            self.biases = torch.nn.ParameterList(
                to(params[f"filters_{i}_bias"]) for i in range(count)
            )
            names = "highway_0_carry", "highway_0_transform", "projection"
            self.dense = torch.nn.ParameterList(to(params[n]["kernel"].T) for n in names)
            self.bias = torch.nn.ParameterList(to(params[n]["bias"]) for n in names)

        def forward(self, ids):
            x = self.table[ids].transpose(1, 2)
            pairs = zip(self.kernels, self.biases, strict=True)
            found = [torch.nn.functional.conv1d(x, k, b).amax(-1) for k, b in pairs]
            x = torch.relu(torch.cat(found, -1))
            linear = [
                lambda x, i=i: torch.nn.functional.linear(x, self.dense[i], self.bias[i])
                for i in range(3)
            ]
            gate = torch.sigmoid(linear[0](x))
            return linear[2](gate * torch.relu(linear[1](x)) + (1 - gate) * x)

    return CharacterCNN().eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    import jax
    import numpy as np
    import torch

    from firth.layers.characters.cnn import CharacterCNN, places_needed
    from firth.models.elmo import bilm
    from firth.tokenizers.spelling import spell

    torch.set_num_threads(THREADS)
    config = bilm.Config(**bilm.size("small"))
    model = CharacterCNN(
        config.characters, config.character_width, config.filters, projection=config.width
    )
    words = text(args.words)
    ids, lengths = spell(words)
    params = model.init(jax.random.key(0), ids[:1])["params"]
    params = jax.tree.map(np.array, params)
    theirs = torch_module(torch, params)
    apply = jax.jit(lambda params, ids: model.apply({"params": params}, ids))
    on_device = jax.device_put(params)

    def batches(ids, lengths, cut):
        for begin in range(0, len(ids), args.batch):
            part = ids[begin : begin + args.batch]
            longest = -(-int(lengths[begin : begin + args.batch].max()) // 4) * 4
            fill = np.zeros((args.batch - len(part), part.shape[1]), part.dtype)
            places = places_needed(longest, config.filters, 50) if cut else 50
            yield np.concatenate([part, fill])[:, :places], len(part)

    def firth(cut):
        return np.concatenate(
            [np.asarray(apply(on_device, x))[:n] for x, n in batches(ids, lengths, cut)]
        )

    def once():
        distinct, place = np.unique(np.array(words), return_inverse=True)
        own, size = spell(list(distinct))
        order = np.argsort(size, kind="stable")
        found = np.empty((len(own), config.width), np.float32)
        parts = [
            np.asarray(apply(on_device, x))[:n] for x, n in batches(own[order], size[order], True)
        ]
        found[order] = np.concatenate(parts)
        return found[place]

    def pytorch():
        with torch.no_grad():
            parts = [theirs(torch.from_numpy(x))[:n] for x, n in batches(ids, lengths, False)]
        return torch.cat(parts).numpy()

    sides = {
        "pytorch": pytorch,
        "firth, 50 places": lambda: firth(False),
        "firth, places needed": lambda: firth(True),
        "firth, each word once": once,
    }
    expected = pytorch()
    for name, side in sides.items():
        error = float(np.abs(side() - expected).max())
        assert error < 1e-4, (name, error)
        print(json.dumps(dict(side=name, largest_difference=error)))
    seconds = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, side in sides.items():
            begin = time.perf_counter(), sum(os.times()[:2])
            side()
            seconds[name].append((time.perf_counter() - begin[0], sum(os.times()[:2]) - begin[1]))
    base = [statistics.median(x) for x in zip(*seconds["pytorch"], strict=True)]
    for name, found in seconds.items():
        wall, cpu = (statistics.median(x) for x in zip(*found, strict=True))
        record = dict(side=name, words=len(words), distinct=len(set(words)), threads=THREADS)
        record |= dict(wall_s=round(wall, 3), cpu_s=round(cpu, 3))
        record |= dict(times_faster=round(base[0] / wall, 2), by_cpu=round(base[1] / cpu, 2))
        print(json.dumps(record | dict(load=round(os.getloadavg()[0], 1))))


if __name__ == "__main__":
    main()
