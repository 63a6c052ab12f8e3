"""Fine-tuning and prediction of SST-2 from MiniLM's weights: Firth against a plain PyTorch loop.

    python experiments/finetune_speed/bench.py [--examples 3200] [--rounds 3] [--record]

Both sides go from texts to updated weights: they tokenise the same examples, train on them once in
batches of 32 with AdamW, clipping and dropout in float32, and then label the same sentences. The
other side is transformers as its users have it: shuffled batches, each padded to its longest text.
They take turns, each in a process of its own on the same threads. What compiles does so before the
clock starts, and its seconds are printed by themselves. The folder that FIRTH_DATA names has
`glue/SST-2`.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from apart import Sides, answer

from firth.distributed.allocator import keep_freed_memory
from firth.weights.packaged import find_packaged

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
RESULTS = Path(__file__).with_name("results.jsonl")
THREADS = len(os.sched_getaffinity(0))
BATCH, RATE, PREDICTED = 32, 5e-5, 872
SIDES = ("firth", "torch", "torch, memory kept")


def examples(split: str, count: int):
    """(texts, labels) of SST-2; those of train are drawn over the whole file."""
    import numpy as np

    from firth.data.tasks.load import load_split
    from firth.data.tasks.task import GLUE

    found = load_split(GLUE["sst2"], split, DATA / "glue")
    chosen = np.sort(np.random.default_rng(0).permutation(len(found))[:count])
    return [found.texts_a[i] for i in chosen], found.labels[chosen]


class Firth:
    """The view, step and classifier of `firth train` and `firth predict`."""

    def __init__(self, texts, labels, dev):
        import jax

        from firth import recipe
        from firth.run import experiment
        from firth.run.program import lay_out
        from firth.training.partition import create_mesh

        self.jax, self.texts, self.labels, self.dev = jax, texts, labels, dev
        config = recipe.read_recipe("finetune.py:task=sst2,init=minilm")
        config.data.dir = str(DATA / "glue")
        self.mesh = create_mesh(devices=jax.devices()[:1])
        self.run = experiment.build(config, self.mesh)
        self.program = lay_out(
            self.run.model, self.run.objective, config, self.run.steps, self.mesh, self.run.fresh
        )
        self.state = self.first_state()
        self.batches = self.view()
        began = time.perf_counter()
        for length in self.batches.shapes(BATCH):
            steps = range(self.batches.steps_per_epoch(BATCH))
            self.step(next(b for n in steps if (b := self.batch(n))["mask"].shape[1] == length))
        self.predict()
        self.compiling = time.perf_counter() - began
        self.padding = self.batches.pad_fraction(BATCH)
        self.shapes = len(self.batches.shapes(BATCH))

    def first_state(self):
        from firth.models.model import merge_params

        state = self.program.init()
        params, _ = merge_params(self.jax.device_get(state.params), self.run.initial, "minilm")
        return state.replace(params=self.jax.device_put(params, self.program.shardings.params))

    def view(self):
        """The view of the examples, tokenised anew."""
        import numpy as np

        from firth.data.tasks.buckets import Buckets, tokenise
        from firth.data.tasks.task import Examples

        rows = Examples(None, "train", self.texts, None, self.labels, np.arange(len(self.texts)))
        return Buckets(tokenise(rows, self.run.tokenizer, 128))

    def batch(self, number):
        return self.batches.batch(number, BATCH)

    def step(self, batch):
        from firth.training.partition import put_batch

        with self.jax.set_mesh(self.mesh):
            self.state, measured, _ = self.program.step(self.state, put_batch(batch, self.mesh))
        return measured["loss"]

    def train(self):
        self.batches = self.view()
        for number in range(self.batches.steps_per_epoch(BATCH)):
            loss = self.step(self.batch(number))
        self.jax.block_until_ready(loss)

    def predict(self):
        if not hasattr(self, "classifier"):
            import firth
            from firth.inference.predictions.classifier import Classifier
            from firth.inference.predictions.reading import Reading

            encoder = firth.load(classifier_folder(), heads=True)
            self.classifier, self.reading = Classifier(encoder), Reading(batch_size=BATCH)
        return self.classifier(self.dev, self.reading)[0]


def classifier_folder() -> str:
    """MiniLM with a random classifier, as transformers writes it."""
    import tempfile

    import torch
    import transformers

    source, folder = str(find_packaged("minilm")), Path(tempfile.mkdtemp()) / "classifier"
    torch.manual_seed(0)
    auto = transformers.AutoModelForSequenceClassification
    auto.from_pretrained(source, num_labels=2).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return str(folder)


class Torch:
    """transformers' model in a loop of PyTorch."""

    compiling, padding, shapes = 0.0, None, None

    def __init__(self, texts, labels, dev):
        import torch
        import transformers

        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        self.torch, self.texts, self.labels, self.dev = torch, texts, labels, dev
        folder = str(find_packaged("minilm"))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        auto = transformers.AutoModelForSequenceClassification
        self.model = auto.from_pretrained(folder, num_labels=2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, weight_decay=0.01)
        self.scheduler = transformers.get_linear_schedule_with_warmup(self.optimizer, 100, 10_000)
        self.train(2 * BATCH)
        self.predict()

    def train(self, count=None):
        torch = self.torch
        ids = self.tokenizer(self.texts[:count], truncation=True, max_length=128)["input_ids"]
        order, places = torch.randperm(len(ids)).tolist(), []
        self.model.train()
        for begin in range(0, len(order), BATCH):
            rows = order[begin : begin + BATCH]
            batch = self.tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
            labels = torch.tensor([int(self.labels[i]) for i in rows])
            self.optimizer.zero_grad()
            self.model(**batch, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            places.append((batch["attention_mask"].sum().item(), batch["attention_mask"].numel()))
        real, all_places = map(sum, zip(*places, strict=True))
        self.padding = 1 - real / all_places

    def predict(self):
        torch, found = self.torch, []
        self.model.eval()
        with torch.inference_mode():
            for begin in range(0, len(self.dev), BATCH):
                texts = self.dev[begin : begin + BATCH]
                batch = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
                found.append(self.model(**batch).logits.softmax(-1))
        return torch.cat(found).numpy()


def serve(name: str, count: int):
    """Be one side: each line of stdin is what to do, and its seconds are a line of stdout."""
    if name != "torch":
        keep_freed_memory()
    given = (*examples("train", count), examples("dev", PREDICTED)[0])
    side = Firth(*given) if name == "firth" else Torch(*given)
    about = {"compiling": side.compiling, "padding": side.padding, "shapes": side.shapes}
    answer(lambda verb: getattr(side, verb)(), json.dumps(about))


def main():
    """Print examples a second of both sides, and the median of the rounds' ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=3200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="add a line to results.jsonl")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return serve(args.side, args.examples)
    sides = Sides(__file__, SIDES, [f"--examples={args.examples}"], JAX_PLATFORMS="cpu")
    about = {name: json.loads(line) for name, line in sides.said.items()}
    print(f"{THREADS} threads, load {os.getloadavg()[0]:.1f}; {about}")
    times = {}
    for verb, size in (("train", args.examples), ("predict", PREDICTED)):
        found = sides.in_turn(args.rounds, verb)
        times[verb] = {name: [round(s, 3) for s in seconds] for name, seconds in found.items()}
        for name, seconds in times[verb].items():
            ratios = [t / f for t, f in zip(seconds, times[verb]["firth"], strict=True)]
            rate = size / statistics.median(seconds)
            print(f"{verb} {name:<20} {rate:8.1f} examples/s  / {statistics.median(ratios):.2f}")
    sides.close()
    if args.record:
        from firth.training.journal import commit

        entry = {"commit": commit(), "examples": args.examples, "about": about, "seconds": times}
        with RESULTS.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
