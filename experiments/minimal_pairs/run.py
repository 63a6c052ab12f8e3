"""Train models on the same ten million words, and ask each of them BLiMP's minimal pairs.

    python experiments/minimal_pairs/run.py --data ../shared/data --work runs/pairs

It selects the text (text.py), makes a store for each kind of tokenizer, trains or counts each
model, scores it on BabyLM's filtered BLiMP and on its supplement, and prints the table (table.py).
A line of each score goes to results.jsonl beside this file. What is done already is not done
again: kill the command at any time and start it again.
"""

import argparse
import functools
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import table
import text
from commands import call, settings
from measured import measure_once
from options import some_of

RESULTS = Path(__file__).with_name("results.jsonl")
VOCABULARY = 8192
MOST_EPOCHS = 10  # of BabyLM's rules
LSTM_EPOCHS = 2  # in 13 parts, which are epochs to lstm.py: its rate halves after all from the 4th
MASKED = ("bert", "roberta", "modernbert", "modernbert-tiny", "untrained")


class Model(NamedTuple):
    """A column of the table. recipe: None for a body that is not trained.

    of: the model that is scored in another way, by `options` of `firth evaluate`.
    """

    recipe: str | None
    tokenizer: str = "wordpiece"
    of: str | None = None
    options: tuple[str, ...] = ()


MODELS = {
    "frequencies": Model("ngram.py:order=1"),
    "kn5": Model("ngram.py:order=5"),
    "untrained": Model(None),
    "lstm": Model("lstm.py:small,tokens={part}"),
    "bert": Model("bert.py:mini"),
    "roberta": Model("roberta.py:mini", "bpe"),
    "electra": Model("electra.py:mini"),
    "gpt": Model("gpt.py:mini", "bpe"),
    "xlnet": Model("xlnet.py:mini", "unigram"),
    "xlnet-pseudo": Model("xlnet.py:mini", "unigram", of="xlnet", options=("--pseudo",)),
    "modernbert": Model("modernbert.py:mini"),
    "modernbert-tiny": Model("modernbert.py:tiny"),
}
UNTRAINED = dict(  # 6 x 256: the body whose speed is measured as well
    family="bert",
    vocab_size=VOCABULARY,
    num_layers=6,
    hidden_size=256,
    num_heads=4,
    intermediate_size=1024,
    max_length=128,
)
SETS = {
    "blimp": ["--pairs={}/blimp.jsonl.gz", "--only={}/babylm_filtered_pair_ids.json.gz"],
    "supplement": ["--pairs={}/babylm_supplement_filtered.jsonl.gz"],
}


def make_text(data: Path, work: Path) -> None:
    """Write the ten million words and their counts, unless they are there."""
    if not (work / "text.jsonl").exists():
        counts = text.write(data, work / "text.jsonl")
        (work / "counts.json").write_text(json.dumps(counts) + "\n")


def prepare(work: Path, kind: str) -> Path:
    """The store of a kind of tokenizer, made once."""
    store = work / f"store-{kind}"
    if not (store / "manifest.json").exists():
        made = [f"--tokenizer={work / f'tokenizer-{kind}'}", f"--train-tokenizer={kind}"]
        source = f"--input={work / 'text.jsonl'}"
        call("prepare", source, *made, f"--vocab-size={VOCABULARY}", f"--output={store}")
    return store


def train(name: str, work: Path, store: Path, epochs: float | None, dtype: str) -> dict:
    """Train to the end, from the newest checkpoint if there is one; {"steps": ...}, or {}.

    A neural model has the steps of its recipe, at most ten epochs, or those of `epochs`. The LSTM's
    schedule is spread over its epochs.
    """
    from firth.data.corpus.store import open_store
    from firth.recipe import read_recipe

    recipe, data = MODELS[name].recipe, f"--config.data.store={store}"
    if recipe.startswith("ngram.py"):
        if not (work / name / "ngram.safetensors").exists():
            call("train", f"--config={recipe}", f"--workdir={work / name}", data)
        return {}
    tokens = len(open_store(store).tokens)
    recipe = recipe.format(part=round((epochs or LSTM_EPOCHS) * tokens / 13))
    config = read_recipe(recipe)
    epoch = tokens / (config.batch_size * config.data.length)
    steps = int(epochs * epoch if epochs else min(config.steps, MOST_EPOCHS * epoch))
    fields = {"steps": steps, "product_dtype": dtype, "curves": False}
    call("train", f"--config={recipe}", f"--workdir={work / name}", data, *settings(fields))
    return {"steps": steps, "dtype": dtype}


def untrained(directory: Path, tokenizer: Path, seed: int = 0) -> None:
    """Write a body with the initial values of its family, its masked head and the tokenizer."""
    import jax
    import numpy as np

    from firth.models.model import create
    from firth.weights.read import Saved
    from firth.weights.write import write_firth

    key = jax.random.key(seed)
    made = create(UNTRAINED, ("mlm",)).init(key, np.zeros((1, 4), int))["params"]
    params = jax.tree.map(np.asarray, jax.device_get(made))
    saved = Saved(
        UNTRAINED, ("mlm",), 2, None, False, params, directory, "firth", tokenizer_path=tokenizer
    )
    write_firth(directory, saved)


def judged(model: Path, output: Path, *options: str) -> dict:
    """What `firth evaluate` writes of one model with these options."""
    call("evaluate", f"--models={model}", *options, f"--output={output}")
    return next(iter(json.loads(output.read_text()).values()))


def evaluate(name: str, which: str, work: Path, blimp: Path, options: list[str]) -> dict:
    """The shares of a model on a set: of all pairs, of phenomena and of paradigms."""
    given = [option.format(blimp) for option in SETS[which]]
    body, output = work / (MODELS[name].of or name), work / f"{name}-{which}.json"
    return judged(body, output, *given, *options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("../shared/data"))
    add("--work", type=Path, default=Path("runs/pairs"))
    add("--models", type=some_of(MODELS), default=list(MODELS))
    add("--epochs", type=float, help="of the neural models, at most 10 (as many as the recipe has)")
    add("--dtype", default="float32", help="of products: bfloat16 is faster on some CPUs")
    add("--within-word", action="store_true", help="as `firth evaluate --within-word`")
    add("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    if args.epochs is not None and not 0 < args.epochs <= MOST_EPOCHS:
        parser.error(f"--epochs: expected more than 0 and at most {MOST_EPOCHS}")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    work = args.work.resolve()
    make_text(args.data, work)
    for name in args.models:
        model = MODELS[name]
        store = prepare(work, model.tokenizer)
        named = {"model": name, "within_word": args.within_word and name in MASKED}
        if model.recipe:
            named |= train(model.of or name, work, store, args.epochs, args.dtype)
        elif not (work / name).exists():
            untrained(work / name, work / f"tokenizer-{model.tokenizer}")
        options = ["--within-word"] if named["within_word"] else []
        options += [f"--dtype={args.dtype}", *model.options]
        for which in SETS:
            score = functools.partial(evaluate, name, which, work, args.data / "blimp", options)
            measure_once(args.results, named | {"set": which}, score)
    print("\n".join(table.lines(args.results, args.models)))


if __name__ == "__main__":
    main()
