"""One real pretraining on one GPU: the `small` recipes of BERT and ELECTRA, then SST-2 and CoLA.

`firth prepare` makes a vocabulary of 8,192 pieces and a store. Each recipe trains to its end, or
until its minutes are over; a stage that ends earlier saves, and the next command goes on from
there. Then both are fine-tuned on both tasks with three seeds, and so is a body that has seen one
step alone. The majority baseline stands beside.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from commands import command, settings

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[3] / "shared" / "data"))
CORPUS = ("wikipedia_en_sample/articles.jsonl.xz", "english_novels/novels.jsonl.xz")
CORPUS += ("imdb/unsup.jsonl.xz",)
RECIPES = {"bert": "bert.py:small", "electra": "electra.py:small,paper=False"}
TINY = {"bert": "bert.py:tiny"}
TASKS = {"sst2": "accuracy", "cola": "matthews"}  # and what they are judged by
GPU = {"model.dtype": "bfloat16", "model.attention": "auto", "checkpoint.minutes": 2.0}
SHORT = {"steps": 8, "batch_size": 4, "eval.every": 0, "eval.batches": 1}  # of a tiny run
TUNING = {"epochs": 3.0, "batch_size": 32, "schedule.lr": 1e-4}
SAVING = 40  # seconds that a run has to save before the stage ends
STEPS_OF_RANDOM = 1  # in warm-up, at a thousandth of the rate


def cells(tiny: bool, rounds: int) -> list[dict]:
    """The store, the runs, then each task with each run's weights, random ones and none."""
    del rounds  # seeds take their place
    recipes, tasks = (TINY, ("cola",)) if tiny else (RECIPES, TASKS)
    found = [{"part": "store"}, *({"part": "pretrain", "recipe": r} for r in recipes.values())]
    for task in tasks:
        found.append({"part": "majority", "task": task})
        for recipe in recipes.values():
            for weights in ("pretrained", "random"):
                found.append({"part": "tune", "recipe": recipe, "weights": weights, "task": task})
    return found


def lacks(args) -> str:
    """Why there is nothing to train on, or ""."""
    missing = [path for path in (*corpus(args), glue(args)) if not path.exists()]
    return f"no {missing[0]}; give --corpus FILE ... and --glue DIR" if missing else ""


def corpus(args) -> list[Path]:
    """The files of text."""
    return args.corpus or [DATA / name for name in CORPUS]


def glue(args) -> Path:
    """The folder of the tasks."""
    return args.glue or DATA / "glue"


def measure(cell: dict, args) -> dict | None:
    """The figures of a part; None if it goes on in the next command."""
    parts = dict(store=store, pretrain=pretrain, majority=majority, tune=tune)
    args.deadline = time.monotonic() + args.seconds - (2 if args.tiny else SAVING)
    args.work = args.out / "pretrain"
    args.work.mkdir(exist_ok=True)
    return parts[cell["part"]](cell, args)


def store(cell: dict, args) -> dict | None:
    """{"minutes", "tokens"} of `firth prepare`, with a vocabulary trained on the same text."""
    del cell
    size, tokenizer = 300 if args.tiny else 8192, args.work / "tokenizer"
    options = ["--train-tokenizer=wordpiece", f"--vocab-size={size}", f"--tokenizer={tokenizer}"]
    seconds = firth(args, "prepare", "--input", *corpus(args), *options, f"--output={where(args)}")
    if seconds is None:
        return None
    tokens = json.loads((where(args) / "manifest.json").read_text())["tokens"]
    return {"minutes": round(seconds / 60, 2), "tokens": tokens}


def pretrain(cell: dict, args) -> dict | None:
    """{"steps", "of", "minutes", "heldout": metrics} of a run.

    `minutes` count all of its processes, with their starts, compiling and evaluations. They are
    kept beside the run, so that it ends after --pretrain-minutes in however many stages.
    """
    workdir = workdir_of(args, cell["recipe"])
    spent_at = workdir.with_suffix(".json")
    spent = json.loads(spent_at.read_text()) if spent_at.exists() else 0.0
    left, began = 60 * args.pretrain_minutes - spent, time.monotonic()
    if left > 0:
        ended = firth(args, "train", *arguments(cell["recipe"], workdir, args), limit=left)
        spent += time.monotonic() - began
        spent_at.write_text(json.dumps(spent))
        if ended is None and time.monotonic() - began < left:
            return None
    argv = command("evaluate", f"--workdir={workdir}", "--json")
    told = subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout
    measured = json.loads(told)
    return {
        "steps": measured["step"],
        "of": json.loads((workdir / "config.json").read_text())["steps"],
        "minutes": round(spent / 60, 2),
        "heldout": {k.partition("/")[2]: v for k, v in measured.items() if "heldout/" in k},
    }


def majority(cell: dict, args) -> dict:
    """{"dev": {metric: value}}: every text gets the most frequent label of train."""
    from firth.data.tasks.load import get_task, load_split
    from firth.data.tasks.overview import baselines

    task = get_task(cell["task"])
    splits = {name: load_split(task, name, str(glue(args))) for name in ("train", "dev")}
    return {"dev": dict(baselines(task, splits)["dev"].metrics)}


def tune(cell: dict, args) -> dict | None:
    """{"metric", "mean", "std", "values"} on dev over the seeds, the best checkpoint of each."""
    source = workdir_of(args, cell["recipe"])
    if cell["weights"] == "random":
        source = source.with_name(source.name + "-random")
        options = arguments(cell["recipe"], source, args, until=STEPS_OF_RANDOM)
        if firth(args, "train", *options) is None:
            return None
    name = f"{source.name}-{cell['task']}"
    fields = TUNING | {"data.dir": glue(args), "seeds": "0" if args.tiny else "0,1,2"}
    fields |= {"progress": False, "curves": False}
    fields |= {"epochs": 1.0} if args.tiny else {"model.dtype": "bfloat16"}
    recipe = f"finetune.py:task={cell['task']},init={source},length={32 if args.tiny else 128}"
    options = [f"--config={recipe}", f"--workdir={args.work / name}", *settings(fields)]
    if firth(args, "train", *options) is None:
        return None
    metric = f"dev/{TASKS[cell['task']]}"
    found = json.loads((args.work / name / "summary.json").read_text())[metric]
    return {"metric": metric} | {name: found[name] for name in ("mean", "std", "values")}


# ------------------------------------------------------------------------------------ processes


def where(args) -> Path:
    """The store."""
    return args.work / "store"


def workdir_of(args, recipe: str) -> Path:
    """The workdir of a recipe's run."""
    return args.work / recipe.partition(".py")[0]


def arguments(recipe: str, workdir: Path, args, **fields) -> list[str]:
    """Of `firth train` for a recipe on the store."""
    fields |= {"data.store": where(args), "progress": False, "curves": False}
    fields |= SHORT if args.tiny else GPU
    return [f"--config={recipe}", f"--workdir={workdir}", *settings(fields)]


def firth(args, *argv, limit: float = float("inf")) -> float | None:
    """Seconds of a verb; None if it had to stop before its end, saved if it is a run.

    It stops at the stage's end, or after `limit` seconds. Raises RuntimeError with its last words
    if it fails.
    """
    began = time.monotonic()
    with (args.work / "firth.log").open("a+b") as log:
        start = log.tell()
        process = subprocess.Popen(command(*argv), stdout=log, stderr=log)
        try:
            process.wait(max(min(args.deadline - began, limit), 0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
            return None
        log.seek(start)
        said = log.read().decode(errors="replace")
    if process.returncode:
        print(said, file=sys.stderr)  # in the stage's log; what lacks memory is found there
        raise RuntimeError((said.splitlines() or [f"firth {argv[0]} failed"])[-1])
    return time.monotonic() - began
