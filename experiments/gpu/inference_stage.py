"""What is around a training step: vectors, generation, saves beside steps, and compiling.

- `represent`: texts per second from text to mean-pooled vectors, beside a plain loop over
  transformers that sorts by length and pads each batch to its longest text. Both read a model that
  is written here, random but of MiniLM's and BERT-base's sizes, and made-up texts.
- `generate`: tokens per second of greedy generation after 32 tokens, beside transformers' own.
- `saves`: how long a step takes while a checkpoint is written, and without one.
- `compile`: seconds to trace and compile a step, with nothing and with JAX's compilation cache.
"""

import importlib.util
import itertools
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path

SIDES = ("firth", "torch")
VOCABULARY = 30522
MODELS = {  # layers, width, heads, MLP width
    "minilm": (6, 384, 12, 1536),
    "bert-base": (12, 768, 12, 3072),
    "tiny": (2, 32, 2, 64),
}
TEXTS, TEXT_BATCH = 32768, 256
GENERATED = (("base", 1, 512), ("base", 16, 512), ("base", 128, 512))  # GPT-2's size, rows, tokens
SAVED = (("bert.py:base", 512, 128), ("bert.py:large", 64, 512))  # recipe, rows, tokens
COMPILED = ("bert.py:base", "electra.py:base", "modernbert.py:base", "xlnet.py:base")
STEPS_ALONE = 20  # timed before a save


def cells(tiny: bool, rounds: int) -> list[dict]:
    """(round, model or size, side) of what has two sides, then saves, then compiling."""
    models = ("tiny",) if tiny else ("minilm", "bert-base")
    generated = (("tiny", 2, 64),) if tiny else GENERATED
    found = []
    for number in range(rounds):
        for model, side in itertools.product(models, SIDES):
            found.append({"represent": model, "side": side, "round": number})
        for (size, rows, tokens), side in itertools.product(generated, SIDES):
            cell = {"generate": f"gpt2 {size}", "rows": rows, "tokens": tokens, "side": side}
            found.append({**cell, "round": number})
    for recipe, rows, length in (("bert.py:2x128", 2, 16),) if tiny else SAVED:
        found.append({"saves": recipe, "rows": rows, "length": length})
    scans = (True,) if tiny else (True, False)
    for recipe, scan in itertools.product(("bert.py:2x128",) if tiny else COMPILED, scans):
        found.append({"compile": recipe, "scan": scan})
    return found


def measure(cell: dict, args) -> dict:
    """The figures of a cell; see the function of its kind."""
    kinds = dict(represent=represent, generate=generate, saves=saves, compile=compiled)
    return next(kinds[name] for name in kinds if name in cell)(cell, args)


# ------------------------------------------------------------------------------------- vectors


def represent(cell: dict, args) -> dict:
    """{"texts_s", "tokens_s", "differs"} of a side; `differs`: from transformers in float32."""
    import numpy as np

    folder = written_model(args.out / "models" / cell["represent"], cell["represent"])
    texts = made_up_texts(64 if args.tiny else TEXTS)
    dtype = "float32" if args.tiny else "bfloat16"
    side = firth_vectors if cell["side"] == "firth" else torch_vectors
    encode = side(folder, dtype, "cpu" if args.tiny else "cuda")
    few = texts[:8]
    exact = torch_vectors(folder, "float32", "cpu")(few)
    differs = float(np.abs(encode(few) - exact).max() / np.abs(exact).max())
    if not differs < 0.05:
        raise ValueError(f"the vectors differ from transformers' in float32 by {differs:.2g}")
    encode(texts)  # compiles
    began = time.perf_counter()
    encode(texts)
    seconds = time.perf_counter() - began
    words = sum(len(text.split()) for text in texts)
    return {
        "texts_s": round(len(texts) / seconds, 1),
        "tokens_s": round((words + 2 * len(texts)) / seconds),
        "differs": float(f"{differs:.2g}"),
    }


def made_up_texts(count: int) -> list[str]:
    """Texts of random words, each a token; 24 words in the mean, like sentences (log-normal)."""
    import numpy as np

    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(20), 0.6, count), 3, 120).astype(int)
    return [" ".join(f"w{i}" for i in draw.integers(0, VOCABULARY - 5, n)) for n in lengths]


def written_model(folder: Path, name: str) -> Path:
    """A published directory with a random BERT of this size, whose words are w0, w1 ..."""
    import torch
    import transformers

    if (folder / "config.json").exists():  # written last
        return folder
    layers, width, heads, inner = MODELS[name]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    folder.mkdir(parents=True, exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"w{i}" for i in range(VOCABULARY - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def firth_vectors(folder: Path, dtype: str, device: str):
    """A function from texts to vectors."""
    import firth

    del device  # JAX's own
    encoder = firth.load(folder, dtype=dtype, heads=False)
    return lambda texts: encoder.encode(texts, batch_size=TEXT_BATCH)


def torch_vectors(folder: Path, dtype: str, device: str):
    """The same with transformers: sorted by length, padded to the longest of a batch, SDPA."""
    import numpy as np
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.eval().to(device)

    def run(texts):
        ids = tokenizer(texts)["input_ids"]
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        vectors = np.empty((len(ids), model.config.hidden_size), np.float32)
        with torch.inference_mode():
            for begin in range(0, len(order), TEXT_BATCH):
                rows = order[begin : begin + TEXT_BATCH]
                batch = tokenizer.pad({"input_ids": [ids[i] for i in rows]}, return_tensors="pt")
                batch = batch.to(device)
                hidden = model(**batch).last_hidden_state.float()
                weights = batch["attention_mask"][..., None].float()
                vectors[rows] = ((hidden * weights).sum(1) / weights.sum(1)).cpu().numpy()
        return vectors

    return run


# ------------------------------------------------------------------------------------ generation


def generate(cell: dict, args) -> dict:
    """{"tokens_s", "token_ms"} of a side: each row's next token, all rows together."""
    import numpy as np
    import torch

    from firth.models.gpt2 import size

    bench = generation_bench()
    dtype, device = ("float32", "cpu") if args.tiny else ("bfloat16", "cuda")
    vocabulary = 512 if args.tiny else 50257
    dimensions, tokens = size(cell["generate"].split()[1]), cell["tokens"]
    positions = bench.PROMPT + tokens
    model = bench.torch_model(dimensions, vocabulary, positions)
    shape = (cell["rows"], bench.PROMPT)
    prompts = np.random.default_rng(0).integers(0, vocabulary, shape, np.int32)
    if cell["side"] == "firth":
        sizes = dimensions | {"dtype": dtype}
        encoder = bench.firth_encoder(model, sizes, vocabulary, positions)
        run = bench.firth_side(encoder, prompts, tokens)
    else:
        run = bench.torch_side(model.to(device, getattr(torch, dtype)), prompts, tokens)
    run()  # compiles
    spent = []
    for _ in range(1 if args.tiny else 3):
        began = time.perf_counter()
        run()
        spent.append(time.perf_counter() - began)
    seconds = statistics.median(spent)
    return {
        "tokens_s": round(cell["rows"] * tokens / seconds, 1),
        "token_ms": round(1000 * seconds / tokens, 3),
    }


def generation_bench():
    """experiments/generation/bench.py; `bench` is the name of step_time's."""
    path = Path(__file__).parents[1] / "generation" / "bench.py"
    spec = importlib.util.spec_from_file_location("generation_bench", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------ saves, compiling


def saves(cell: dict, args) -> dict:
    """Times of a step with and without a save under way.

    {"step_ms": alone, "beside_ms": the mean while a checkpoint is written, "blocked_ms": until the
    save lets the loop go on, "behind_s": until it is complete, "state_gib", "slower": beside_ms to
    step_ms}.
    """
    import jax
    import steps_stage

    from firth.training.checkpoint import Checkpoints

    cell = {**cell, "recipe": cell["saves"], "rate": 0.1}
    program, _, rows = steps_stage.program_of(cell, "plain", args.tiny)
    state = program.init()
    step = program.step.lower(state, rows).compile()

    def timed_step():
        nonlocal state
        began = time.perf_counter()
        state, measured, _ = step(state, rows)
        jax.block_until_ready(measured)
        return time.perf_counter() - began

    for _ in range(3):
        timed_step()
    alone = statistics.median(timed_step() for _ in range(3 if args.tiny else STEPS_ALONE))
    folder = args.out / "saves"
    shutil.rmtree(folder, ignore_errors=True)
    checkpoints, found = Checkpoints(folder, keep=1), []
    for number in range(1, 3 if args.tiny else 4):
        began = time.perf_counter()
        checkpoints.save(number, state.parts(), {"window": {}})
        blocked, beside = time.perf_counter() - began, []
        waiting = threading.Thread(target=checkpoints.wait)
        waiting.start()
        while waiting.is_alive() or not beside:
            beside.append(timed_step())
        found.append((blocked, statistics.mean(beside), time.perf_counter() - began))
    checkpoints.close()
    shutil.rmtree(folder)
    blocked, beside, behind = (statistics.median(column) for column in zip(*found, strict=True))
    return {
        "step_ms": round(1000 * alone, 3),
        "beside_ms": round(1000 * beside, 3),
        "slower": round(beside / alone, 3),
        "blocked_ms": round(1000 * blocked, 1),
        "behind_s": round(behind, 2),
        "state_gib": round(sum(x.nbytes for x in jax.tree.leaves(state)) / 2**30, 2),
    }


def compiled(cell: dict, args) -> dict:
    """{"trace_s", "compile_s": with an empty cache, "cached_s": with what that left there}."""
    import jax
    import steps_stage
    from jax.experimental.compilation_cache import compilation_cache

    rows, length = (2, 16) if args.tiny else (64, 512)
    cell = {**cell, "recipe": cell["compile"], "rows": rows, "length": length, "rate": 0.1}
    program, _, rows = steps_stage.program_of(cell, "plain", args.tiny, scan=cell["scan"])
    found = {}
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        for name in ("compile_s", "cached_s"):
            compilation_cache.reset_cache()
            jax.clear_caches()
            began = time.perf_counter()
            lowered = program.step.lower(program.state, rows)
            found["trace_s"] = round(time.perf_counter() - began, 2)
            began = time.perf_counter()
            lowered.compile()
            found[name] = round(time.perf_counter() - began, 2)
    return found
