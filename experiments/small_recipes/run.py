"""Find what the small sizes of every family train with, and measure what they reach.

    python experiments/small_recipes/run.py --data ../shared/data --work runs/small --core 0

Three stages. `trials` are short runs that look for the rate, the warm-up, the shape of a batch and
the decay, one after the other, from what configs/laptop.py has. `full` trains the recipe to its
end, with what the trials found, or without trials as it is. `times` measures a step of every recipe
on one core. Each line goes to results.jsonl in the work folder as soon as it is known. What is
there already is not done again: kill the command at any time and start it again. A second one with
another --core and other --families may run beside it.
"""

import argparse
import ctypes
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

CORPUS = ("wikipedia_en_sample/articles.jsonl.xz", "english_novels/novels.jsonl.xz")
CORPUS += ("imdb/unsup.jsonl.xz",)
VOCABULARY = 8192
TOKENIZERS = {  # the kind that each family's paper has; one of pieces for Transformer-XL
    "bert": "wordpiece",
    "distilbert": "wordpiece",
    "electra": "wordpiece",
    "modernbert": "wordpiece",
    "roberta": "bpe",
    "gpt": "bpe",
    "gpt2": "bpe",
    "transformer_xl": "bpe",
    "albert": "unigram",
    "xlnet": "unigram",
}
AXES = {  # what a trial changes; the rate is doubled and halved for as long as that helps
    "stddev": (0.02, 0.05, 0.1),  # of initial values
    "lr": (),
    "warmup": (0.02, 0.05, 0.1, 0.2),
    "shape": ((16, 64), (32, 64), (16, 128)),  # rows, tokens of a row
    "weight_decay": (0.01, 0.1),
}
BLANKS = (
    "this movie is [MASK].",
    "he opened the [MASK] and went into the house.",
    "she was born in [MASK] and went to school there.",
    "it was one of the [MASK] films that i have ever seen.",
    "the old man took her [MASK] and looked at her.",
)
PROMPT = "The old man"
ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "MALLOC_ARENA_MAX": "2",
}


# -------------------------------------------------------------------------------- one process


class RunError(Exception):
    """A command that did not end well."""


def firth(*argv, log: Path | None = None) -> dict:
    """Run the command on this process's core; {"minutes", "core_minutes", "gib", "stdout"}.

    It ends with this process, however that ends. Raises RunError where it fails.
    """
    began = time.perf_counter()
    with open(log or os.devnull, "ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "firth", *map(str, argv)],
            env=os.environ | ONE_THREAD,
            stdout=subprocess.PIPE,
            stderr=errors,
            preexec_fn=end_with_parent,
        )
        printed = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        command = " ".join(map(str, argv))
        raise RunError(f"firth {command} ended with {process.returncode}; see {log}")
    return {
        "minutes": round((time.perf_counter() - began) / 60, 2),
        "core_minutes": round((used.ru_utime + used.ru_stime) / 60, 2),
        "gib": round(used.ru_maxrss / 2**20, 2),
        "stdout": printed,
    }


def end_with_parent():
    """Let Linux end this process when its parent is killed."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def hardware() -> str:
    """The CPU's name and how many cores this process may use."""
    name = Path("/proc/cpuinfo").read_text().partition("model name\t: ")[2].partition("\n")[0]
    return f"{name or platform.processor()}, {len(os.sched_getaffinity(0))} core"


# -------------------------------------------------------------------------------- the text


def prepare(data: Path, work: Path, kind: str) -> Path:
    """The store of a kind of tokenizer, made once."""
    store = work / f"store-{kind}"
    if not (store / "manifest.json").exists():
        files = [data / name for name in CORPUS]
        options = [f"--train-tokenizer={kind}", f"--vocab-size={VOCABULARY}", "--workers=1"]
        options += [f"--tokenizer={work / f'tokenizer-{kind}'}", f"--output={store}"]
        firth("prepare", "--input", *files, *options, log=work / "prepare.log")
    return store


def word_entropy(store: Path, share: float, smoothing: float = 0.0) -> float:
    """Cross-entropy in nats of single held-out tokens under their frequencies in training.

    What a model reaches that knows nothing but how often masks fall on each token. `smoothing`: the
    exponent of DistilBERT's, which choose a token in proportion to its count to the power of minus
    that.
    """
    import numpy as np

    from firth.data.corpus.store import open_store
    from firth.data.views.selection import split_documents

    corpus = open_store(store)
    counts = corpus.token_counts()
    _, held = split_documents(corpus, share)
    heldout = np.zeros_like(counts)
    for document in held:
        first, last = corpus.sentences[corpus.documents[document : document + 2]]
        heldout += np.bincount(corpus.tokens[first:last], minlength=len(counts))
    chosen = np.maximum(counts, 1.0) ** -smoothing
    train = (counts - heldout + 1.0) * chosen  # of a token that training lacks: one
    weights = heldout * chosen
    return float(-(weights * np.log(train / train.sum())).sum() / weights.sum())


# -------------------------------------------------------------------------------- runs


@dataclasses.dataclass(frozen=True)
class Study:
    """One family and size: its store, its trials and its full run."""

    family: str
    size: str
    work: Path
    store: Path
    tokens: int  # that a trial reads

    @property
    def results(self) -> Path:
        """A line of JSON for each run."""
        return self.work / "results.jsonl"

    def settings(self) -> dict:
        """Those of configs/laptop.py, as the trials name them."""
        from firth.recipe import read_recipe

        config = read_recipe(self.recipe(0))
        return {
            "stddev": config.model.init_stddev,
            "lr": config.schedule.lr,
            "warmup": config.schedule.warmup,
            "shape": (config.batch_size, config.data.length),
            "weight_decay": config.optimizer.weight_decay,
        }

    def known(self, kind: str, settings: dict) -> dict | None:
        """The result of this run, if there is one."""
        wanted = (self.family, self.size, kind, json.loads(json.dumps(settings)))
        names = ("family", "size", "kind", "settings")
        rows = (row for row in read(self.results) if tuple(row[n] for n in names) == wanted)
        return next(rows, None)

    def recipe(self, length: int) -> str:
        """The recipe and its arguments; 0 is the length that it has by itself.

        DistilBERT's teacher is the BERT of this size.
        """
        arguments = [self.size, f"length={length}"]
        if self.family == "distilbert":
            arguments.append(f"teacher={self.work / f'full-bert-{self.size}'}")
        if (self.family, self.size) == ("electra", "small"):
            arguments.append("paper=False")
        return f"{self.family}.py:{','.join(arguments)}"

    def trial(self, settings: dict) -> float:
        """How far a short run with these settings gets, in nats; the higher the better."""
        rows, length = settings["shape"]
        fields = self.fields(settings) | {"steps": self.tokens // (rows * length), "eval.every": 0}
        parts = [f"{settings[axis]:g}" for axis in ("stddev", "lr", "warmup", "weight_decay")]
        name = f"trial-{self.family}-{self.size}-{rows}x{length}-{'-'.join(parts)}"
        return self.run("trial", settings, name, fields)["gain"]

    def search(self, axes: list[str]) -> dict:
        """The best settings of one axis after the other."""
        best = self.settings()
        for axis in axes:
            tried = {value: self.trial(best | {axis: value}) for value in (best[axis], *AXES[axis])}
            if axis == "lr":
                for factor in (2.0, 0.5):
                    while (rate := max(tried, key=tried.get) * factor) not in tried:
                        tried[rate] = self.trial(best | {axis: rate})
            best[axis] = max(tried, key=tried.get)
        return best

    def full(self, settings: dict) -> dict:
        """The recipe to its end, with these settings."""
        name = f"full-{self.family}-{self.size}"
        return self.run("full", settings, name, self.fields(settings))

    def fields(self, settings: dict) -> dict:
        """The fields of the recipe that settings are."""
        return {
            "batch_size": settings["shape"][0],
            "model.init_stddev": settings["stddev"],
            "schedule.lr": settings["lr"],
            "schedule.warmup": settings["warmup"],
            "optimizer.weight_decay": settings["weight_decay"],
        }

    def run(self, kind, settings, name, fields) -> dict:
        """Train, measure, and write the line of a run that is not known yet."""
        if row := self.known(kind, settings):
            return row
        from firth.training.journal import commit

        workdir, log = self.work / name, self.work / f"{name}.log"
        fields |= {"data.store": self.store, "progress": False, "curves": kind == "full"}
        resumed = (workdir / "checkpoints").exists()
        changes = [f"--config.{field}={value}" for field, value in fields.items()]
        recipe = f"--config={self.recipe(settings['shape'][1])}"
        used = firth("train", recipe, f"--workdir={workdir}", *changes, log=log)
        whole = "--config.eval.batches=1000000"  # the text that the entropy is of
        told = firth("evaluate", f"--workdir={workdir}", "--json", whole, log=log)["stdout"]
        measured = json.loads(told)
        config = json.loads((workdir / "config.json").read_text())
        entropy = word_entropy(
            self.store, config["data"]["heldout"], config["objective"].get("smoothing", 0.0)
        )
        row = {
            "family": self.family,
            "size": self.size,
            "kind": kind,
            "settings": settings,
            "steps": config["steps"],
            "tokens": config["steps"] * config["batch_size"] * config["data"]["length"],
            "minutes": used["minutes"],
            "core_minutes": used["core_minutes"],  # of the last process, if it was resumed
            "resumed": resumed,
            "gib": used["gib"],
            "heldout": {k.partition("/")[2]: v for k, v in measured.items() if "heldout/" in k},
            "word_entropy": round(entropy, 4),
        }
        row["gain"] = round(gain(row["heldout"], entropy), 4)
        if kind == "full":
            row["says"] = self.says(workdir, log)
        row |= {"commit": commit(), "hardware": hardware(), "threads": 1}
        append(self.results, row)
        return row

    def says(self, workdir: Path, log: Path):
        """Five filled blanks, or a generated text; None of a model that does neither."""
        if self.family in ("gpt", "gpt2"):
            options = [f"--prompt={PROMPT}", "--tokens=40", "--top-p=0.9", "--output=-"]
            return json.loads(firth("generate", f"--model={workdir}", *options, log=log)["stdout"])
        if self.family in ("xlnet", "transformer_xl"):
            return None
        lines = firth("fill", f"--model={workdir}", "--json", *BLANKS, log=log)["stdout"]
        filled = [json.loads(line) for line in lines.splitlines()]
        return {f["text"]: [choice["token"] for choice in f["choices"]] for f in filled}


def gain(heldout: dict, entropy: float) -> float:
    """How far the held-out loss lies below that of a model that knows frequencies alone, in nats.

    Of replaced-token detection, below that of a constant that knows how many tokens are replaced.
    """
    import math

    if "rtd_loss" in heldout:
        p = heldout["replaced_fraction"]
        return -p * math.log(p) - (1 - p) * math.log(1 - p) - heldout["rtd_loss"]
    loss = next(heldout[name] for name in ("mlm_loss", "plm_loss", "lm_loss") if name in heldout)
    return entropy - loss


# -------------------------------------------------------------------------------- times


def step_ms(recipe: str, steps: int = 6) -> float:
    """Milliseconds of one core that a step takes; made-up rows, and parameters that are zero."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from firth.recipe import read_recipe
    from firth.run.outline import FREE, outline
    from firth.run.program import lay_out
    from firth.training.partition import create_mesh

    config = read_recipe(recipe, [f"--config.model.vocab_size={VOCABULARY}"])
    outlined = outline(config)
    model, objective = outlined.model, outlined.objective
    program = lay_out(model, objective, config, config.steps, create_mesh(config.mesh))
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), program.state)
    draw = np.random.default_rng(0)
    rows = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in outlined.batch.items()}
    rows["tokens"] = draw.integers(FREE, VOCABULARY, rows["tokens"].shape).astype(
        rows["tokens"].dtype
    )
    spent = []
    for _ in range(steps + 2):  # the first compiles
        began = time.process_time()
        state, measured, _ = program.step(state, jax.device_put(rows))
        jax.block_until_ready((state, measured))
        spent.append(time.process_time() - began)
    return round(1e3 * float(np.median(spent[2:])), 1)


def times(studies: list[Study]) -> None:
    """A line for each recipe and its settings; known ones are left out."""
    from firth.training.journal import commit

    for study in studies:
        settings = {"shape": study.settings()["shape"]}  # on which the time depends
        if study.known("time", settings):
            continue
        recipe = study.recipe(0).partition(",teacher=")[0]
        row = {"family": study.family, "size": study.size, "kind": "time", "settings": settings}
        row |= {"core_ms": step_ms(recipe), "commit": commit(), "hardware": hardware()}
        append(study.results, row)
        print(f"{recipe:<40} {row['core_ms']:8.1f} ms of one core a step", flush=True)


# -------------------------------------------------------------------------------- all


def read(path: Path) -> list[dict]:
    """The rows of results.jsonl; [] where there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, row: dict) -> None:
    """Add a line at once, so that two processes may write."""
    with path.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"))
    add("--work", type=Path, required=True, help="folder for stores, runs and results.jsonl")
    add("--families", default=",".join(TOKENIZERS))
    add("--sizes", default="tiny")
    add("--stages", default="trials,full", help="some of trials, full, times")
    add("--axes", default=",".join(AXES), help="what trials change, in this order")
    add("--tokens", type=int, default=1_500_000, help="that a trial reads")
    add("--core", type=int, help="run on this core alone")
    args = parser.parse_args()
    if args.core is not None:
        os.sched_setaffinity(0, {args.core})
    os.environ |= ONE_THREAD
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    stages = args.stages.split(",")
    studies = [
        Study(family, size, work, work / f"store-{TOKENIZERS[family]}", args.tokens)
        for family in args.families.split(",")
        for size in args.sizes.split(",")
    ]
    if "times" in stages:
        times(studies)
    failed = []
    for study in studies:
        try:
            if {"trials", "full"} & set(stages):
                prepare(args.data.resolve(), work, TOKENIZERS[study.family])
            settings = study.settings()
            if "trials" in stages:
                settings = study.search(args.axes.split(","))
                print(study.family, study.size, "best:", settings, flush=True)
            if "full" in stages:
                row = study.full(settings)
                print(study.family, study.size, f"{row['gain']:.2f} nats below", flush=True)
        except RunError as error:  # the others go on
            failed.append(study.family)
            print(error, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
