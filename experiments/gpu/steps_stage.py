"""Training steps of BERT-base and -large: Firth beside transformers, each side in a process.

First the rate of matrix products, which is the ceiling. Then every side in turn, round by round, so
that a stage that runs out of time has whole rounds. All train the same body on the same number of
rows and masked tokens, with AdamW and clipping. `rate` is that of dropout on the probabilities of
attention; all other dropout is 0.1 on both sides.
"""

import itertools
import os
import statistics
import time

VOCABULARY = 30522
SHAPES = (  # recipe, rows, tokens
    ("bert.py:base", 512, 128),
    ("bert.py:base", 128, 512),
    ("bert.py:large", 256, 128),
    ("bert.py:large", 64, 512),
)
SIDES = ("firth plain", "firth cudnn", "torch eager", "torch sdpa", "torch compile")
TINY = (("bert.py:2x128", 2, 16),)
WARM, TIMED = 3, 20  # steps
PRODUCTS = (  # m, k, n of products of a training step, and the square that peaks are quoted for
    (65536, 768, 768),
    (65536, 768, 3072),
    (65536, 3072, 768),
    (65536, 1024, 4096),
    (8192, 8192, 8192),
)


def cells(tiny: bool, rounds: int) -> list[dict]:
    """The products, then (round, shape, rate, side)."""
    products = [(64, 64, 64)] if tiny else PRODUCTS
    return [{"product": list(product)} for product in products] + [
        step_cell(*shape, side, rate, number)
        for number, shape, rate, side in itertools.product(
            range(rounds), TINY if tiny else SHAPES, (0.0,) if tiny else (0.0, 0.1), SIDES
        )
        if rate == 0.0 or side != "firth cudnn"  # it has no dropout
    ]


def step_cell(recipe: str, rows: int, length: int, side: str, rate: float, number: int) -> dict:
    """The cell of a side's step."""
    fields = dict(recipe=recipe, rows=rows, length=length, side=side, rate=rate)
    return {**fields, "round": number}


def measure(cell: dict, args) -> dict:
    """{"tflops"} of a product; {"step_ms", "tokens_s", "tflops", "gib", ...} of a step."""
    if "product" in cell:
        return {"tflops": round(product_rate(*cell["product"]) / 1e12, 3)}
    side, way = cell["side"].split()
    return firth_step(cell, way, args.tiny) if side == "firth" else torch_step(cell, way, args.tiny)


def product_rate(m: int, k: int, n: int) -> float:
    """FLOP/s of the product of [m, k] with [k, n] in bfloat16, of random numbers."""
    import jax
    from attention_stage import seconds_of

    a = jax.random.normal(jax.random.key(0), (m, k), "bfloat16")
    b = jax.random.normal(jax.random.key(1), (k, n), "bfloat16")
    return 2 * m * k * n / seconds_of(jax.jit(lambda a, b: a @ b), (a, b))


# ----------------------------------------------------------------------------------- the sides


def recipe_of(cell: dict, way: str, tiny: bool):
    """The config of a cell's recipe, in bfloat16 but on a CPU."""
    from firth.recipe import flatten, read_recipe

    joint = "," if ":" in cell["recipe"] else ":"
    bare = read_recipe(f"{cell['recipe']}{joint}length={cell['length']}")
    changes = {
        "batch_size": cell["rows"],
        "accumulate": 1,
        "model.vocab_size": 2048 if tiny else VOCABULARY,
        "model.dtype": "float32" if tiny else "bfloat16",
        "model.attention": way,
        "model.attention_dropout": cell["rate"],
        "model.activation": "gelu",  # torch's, too
    }
    known = flatten(bare)
    overrides = [f"--config.{name}={value}" for name, value in changes.items() if name in known]
    return read_recipe(f"{cell['recipe']}{joint}length={cell['length']}", overrides)


def program_of(cell: dict, way: str, tiny: bool, **fields):
    """(the program of `firth train`, what it was outlined from, rows of random tokens) of a cell.

    `fields` are of the model section. Raises FirthError where the way is not to be had here.
    """
    import jax
    import numpy as np

    from firth.layers.transformer import choose_attention
    from firth.run.outline import FREE, outline
    from firth.run.program import lay_out
    from firth.training.partition import create_mesh

    jax.config.update("jax_threefry_partitionable", True)  # as in training
    config = recipe_of(cell, way, tiny)
    config.model.update(fields)
    choose_attention(config.model)
    outlined, mesh = outline(config), create_mesh(devices=jax.devices()[:1])
    program = lay_out(outlined.model, outlined.objective, config, config.steps, mesh)
    draw = np.random.default_rng(0)
    rows = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in outlined.batch.items()}
    for name in rows.keys() & {"tokens", "targets"}:
        shape, kind = rows[name].shape, rows[name].dtype
        rows[name] = draw.integers(FREE, config.model.vocab_size, shape).astype(kind)
    return program, outlined, jax.device_put(rows)


def firth_step(cell: dict, way: str, tiny: bool) -> dict:
    """Time and memory of the step that `firth train` compiles, and seconds to compile it."""
    import jax

    from firth.errors import FirthError
    from firth.planning.flops import update_flops

    try:
        program, outlined, rows = program_of(cell, way, tiny)
    except FirthError as error:
        return {"skipped": str(error)}
    holder = [program.init()]
    began = time.perf_counter()
    compiled = program.step.lower(holder[0], rows).compile()
    compile_s = time.perf_counter() - began

    def step():
        holder[0], measured, _ = compiled(holder[0], rows)
        return measured["loss"][0]

    found = timed(step, jax.block_until_ready, cell, tiny)
    flops = sum(update_flops(outlined).values())
    memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    return found | {
        "tflops": round(flops / found["step_ms"] / 1e9, 3),
        "gib": round(memory / 2**30, 2),
        "compile_s": round(compile_s, 1),
    }


def torch_step(cell: dict, way: str, tiny: bool) -> dict:
    """The same of transformers' model: eager attention, SDPA, or SDPA under torch.compile."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave the memory to torch
    import torch
    import torch_steps

    device = "cpu" if tiny else "cuda"
    compiler = None
    if way == "compile":
        compiler = "eager" if tiny else "inductor"  # without a C++ compiler, and in seconds
    step = torch_steps.build(
        cell,
        recipe_of(cell, "plain", tiny),
        attention="eager" if way == "eager" else "sdpa",
        bf16=not tiny,
        device=device,
        compiler=compiler,
        wait=False,
    )
    began = time.perf_counter()
    float(step())
    compile_s = time.perf_counter() - began
    found = timed(step, float, cell, tiny)
    memory = 0 if tiny else torch.cuda.max_memory_allocated()
    return found | {"gib": round(memory / 2**30, 2), "compile_s": round(compile_s, 1)}


def timed(step, wait, cell: dict, tiny: bool) -> dict:
    """{"step_ms", "tokens_s", "spread"}: steps in three blocks, waiting at the end of each."""
    for _ in range(1 if tiny else WARM):
        last = step()
    wait(last)
    count, blocks = (1 if tiny else TIMED), []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(count):
            last = step()
        wait(last)
        blocks.append((time.perf_counter() - began) / count)
    seconds = statistics.median(blocks)
    return {
        "step_ms": round(1000 * seconds, 3),
        "tokens_s": round(cell["rows"] * cell["length"] / seconds),
        "spread": round((max(blocks) - min(blocks)) / seconds, 3),
    }
