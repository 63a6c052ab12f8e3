"""Command lines as a table, and the store, models and run that they name.

A table (tests/commands/lines/*.toml) has a `verb` and groups of lines. A line is [arguments,
pattern of what is printed, exit status (2)]; a name in braces is one of `make_places`. A group may
have `files` {name: text} (in Latin-1 if the name begins so) and `links` {name: target} in the
folder in which its lines run, and a `limit` on the bytes of a file, which a full disk has too.
"""

import shlex
import tomllib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from firth import recipe
from firth.models.logistic import files as logistic_files
from firth.models.logistic.features import Features
from firth.models.logistic.model import Logistic
from firth.models.model import create
from firth.run import experiment, recorded
from firth.run.workdir import describe_run
from firth.tokenizers.train_words import word_vocabulary
from firth.training.checkpoint import Checkpoints
from firth.training.partition import create_mesh
from firth.weights.description import complete_spec
from firth.weights.read import Saved, read_model
from firth.weights.write import write_firth, write_published
from helpers.runs import arguments

BODY = dict(num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32, max_length=32)
STEP = 3  # of the run's checkpoint


class Line(NamedTuple):
    """One command line of a table."""

    verb: str
    arguments: str
    pattern: str
    status: int
    files: dict[str, str]
    links: dict[str, str]
    limit: int | None

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.verb} {self.arguments}"[:90]

    def argv(self, places: dict[str, Path]) -> list[str]:
        """The arguments with the places filled in."""
        return [self.verb, *shlex.split(self.arguments.format_map(places))]


def read_table(path: Path) -> list[Line]:
    """The lines of one table."""
    table = tomllib.loads(path.read_text())
    return [
        Line(
            *(table["verb"], arguments, pattern, *(status or [2])),
            *(files, group.get("links", {}), group.get("limit")),
        )
        for group in table["group"]
        for arguments, pattern, *status in group["lines"]
        for files in [table.get("files", {}) | group.get("files", {})]
    ]


def make_places(folder: Path, store: Path) -> dict[str, Path]:
    """{name: place}: a store with its text, a run, the same model in both layouts, a causal one,
    and a logistic regression.

    The parameters are random and nothing is compiled.
    """
    run, seeds = folder / "run", folder / "seeds"
    for workdir in (run, seeds / "seed-0", seeds / "seed-1"):
        make_run(workdir, store)
    write_published(folder / "published", read_model(run))
    write_firth(folder / "firth", read_model(run))
    tokenizer = store / "tokenizer"
    spec = {"family": "gpt2", "vocab_size": 120} | BODY
    model = experiment.create_model(spec, _Words())
    saved = Saved(
        spec,
        ("lm",),
        2,
        None,
        False,
        random_params(model),
        folder,
        "firth",
        ("float32",),
        tokenizer,
    )
    write_firth(folder / "causal", saved)
    write_firth(folder / "mute", read_model(folder / "causal"))
    for file in (folder / "mute").glob("[tv]o[kc]*"):  # tokenizer*, vocab*
        file.unlink()
    for name in ("empty", "linear"):
        (folder / name).mkdir()
    arrays = np.ones((2, 1)), np.zeros(2)
    linear = Logistic(Features(), 1, "counts", ["word:good"], ("neg", "pos"), *arrays)
    logistic_files.save(linear, folder / "linear")
    make_tagger(folder / "tagger")
    make_bert(folder / "answerer", tokenizer, "answer")
    make_bert(folder / "chooser", tokenizer, "choice")
    names = ("run", "seeds", "published", "firth", "causal", "mute", "empty", "linear", "tagger")
    names += ("answerer", "chooser")
    places = {name: folder / name for name in names}
    return places | {
        "store": store,
        "tok": store.parent / "tok",
        "corpus": store.parent / "corpus.txt",
    }


def make_tagger(folder: Path):
    """A Firth directory of a tagger of entities with random parameters."""
    words, labels = word_vocabulary(["<unk>", "<eos>", "a"]), ("O", "B-X", "I-X")
    words.save(folder.with_name("words"))
    spec = complete_spec({"family": "tagger", "vocab_size": 3, "hidden_size": 4, "filters": 2}, "")
    model = create(spec, ("crf",), len(labels))
    files = (random_params(model), folder, "firth", ("float32",), folder.with_name("words"))
    write_firth(folder, Saved(spec, ("crf",), len(labels), labels, False, *files))


def make_bert(folder: Path, tokenizer: Path, head: str):
    """A Firth directory of a model with this head alone, with random parameters."""
    spec = complete_spec({"family": "bert", "vocab_size": 200} | BODY, "")
    params = random_params(create(spec, (head,)))
    files = (params, folder, "firth", ("float32",), tokenizer)
    write_firth(folder, Saved(spec, (head,), 2, None, False, *files))


class _Words:
    """What `create_model` asks of an objective: a language model's head, and nothing else."""

    heads = ("lm",)

    def parts(self, spec):
        return {}


def make_run(workdir: Path, store: Path, **more):
    """A workdir with a checkpoint of random parameters; `more` are further fields of its recipe."""
    changes = {f"model.{name}": value for name, value in BODY.items()} | {"eval.batches": 1} | more
    argv = arguments(store, workdir, **changes)
    config = recipe.located(recipe.read_recipe(argv[0].removeprefix("--config="), argv[2:]))
    run = experiment.build(config, create_mesh(config.mesh))
    workdir.mkdir(parents=True)
    recorded.record(config, workdir)
    describe_run(run, workdir)
    saves = Checkpoints(workdir, **config.checkpoint)
    state = {"step": np.int32(STEP), "params": random_params(run.model)}
    saves.save(STEP, state, {"window": {}})
    saves.close()


def random_params(model) -> dict:
    """Parameters of the right shapes."""
    tokens, rng = jax.ShapeDtypeStruct((1, 8), np.int32), np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    return jax.tree.map(lambda x: rng.normal(0, 0.1, x.shape).astype(x.dtype), shapes)


def listing(folder: Path) -> dict[str, tuple]:
    """{name: (kind, bytes)} of everything in a folder but locks; links by their target."""
    found = {}
    for path in sorted(set(folder.rglob("*")) - set(folder.rglob(".lock"))):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        else:
            found[name] = ("folder", b"") if path.is_dir() else ("file", path.read_bytes())
    return found
