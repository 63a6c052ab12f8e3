"""Models on disk: published directories, Firth directories and workdirs, read alike.

    published   config.json, model.safetensors (or shards with an index), the tokenizer's files
    original    a TensorFlow checkpoint, and the code's own config of that name (ELECTRA: none),
                or GPT's params_shapes.json and params_*.npy
    Firth       model.json, params.safetensors (flat parameter paths), the tokenizer's files
    workdir     model.json, checkpoints/<step>/, tokenizer/: the folder of a run of `firth train`

A Firth directory made from a published one keeps its config.json and the headers of its weight
files, and so gives back the same bytes. Weights are read from safetensors alone: no pickle, no
HDF5, nothing that can execute; TensorFlow checkpoints are read as the bytes of their tensors.
"""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import safetensors
from flax.traverse_util import flatten_dict, unflatten_dict

from firth import recipe
from firth.errors import FirthError
from firth.models.heads import HEADS
from firth.models.model import EMBEDDINGS, Model, create, to_layout
from firth.storage.local import read_json, sha256
from firth.storage.remote import is_url
from firth.tokenizers.load import load_tokenizer
from firth.training.checkpoint import Checkpoints
from firth.training.remote_workdir import fetch
from firth.weights import openai_gpt, published, tensorflow

BUFFER_DTYPES = {"int64", "uint8", "bool"}

log = logging.getLogger("firth")

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
REFUSED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.ckpt.*", "*.h5", "*.keras", "*.msgpack", "*.pkl")


@dataclasses.dataclass(frozen=True)
class Saved:
    """A model in memory.

    spec: `family` and the fields of that family's Config, without those that say how it is run.
    heads, num_labels, labels (names, or None), regression: see `firth.models.model.Model`.
    params: nested, float32 numpy arrays (perhaps memory-mapped), layers unrolled.
    source, layout: the directory it was read from; "published", "original", "firth", "workdir".
    dtypes: of the numbers in the files.
    tokenizer_path: a directory with its tokenizer, or None.
    published: what gives back the very files it was published as, or None.
    """

    spec: dict
    heads: tuple[str, ...]
    num_labels: int
    labels: tuple[str, ...] | None
    regression: bool
    params: dict
    source: Path
    layout: str
    dtypes: tuple[str, ...] = ("float32",)
    tokenizer_path: Path | None = None
    published: dict | None = None

    def model(self, heads=None, **execution) -> Model:
        """The module, with all heads or those named; `execution` sets scan, remat and dtype."""
        heads = self.heads if heads is None else heads
        return create(self.spec | execution, heads, self.num_labels)

    def tokenizer(self):
        """Load the tokenizer; None when there is none.

        Raises FirthError when its vocabulary is larger than the model's table.
        """
        if self.tokenizer_path is None:
            return None
        tokenizer = load_tokenizer(self.tokenizer_path)
        if tokenizer.vocab_size > self.spec["vocab_size"]:
            raise FirthError(
                f"{self.tokenizer_path}: the tokenizer has {tokenizer.vocab_size} tokens, but the "
                f"model in {self.source} has {self.spec['vocab_size']}; they are not a pair"
            )
        return tokenizer


# ---------------------------------------------------------------------------------- reading


def read_model(source, part: str = "model") -> Saved:
    """Read a model from a published directory, a Firth directory, a workdir or "hf:org/name".

    A workdir may be at a URL (gs://...), of which a local copy is made. `part` "generator" reads
    the generator that was trained in a workdir instead.

    Raises FirthError naming the file for whatever is missing, damaged or not supported.
    """
    if str(source).startswith("hf:"):
        source = _download(str(source).removeprefix("hf:"))
    path = fetch(source) if is_url(source) else Path(source)
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        raise FirthError(f"{path} {kind}; expected a directory with a model, or hf:org/name")
    if (path / "checkpoints").is_dir():
        return _read_workdir(path, part)
    if part != "model" and not tensorflow.find(path):
        raise FirthError(f"{path} is no workdir; only the workdir of a run holds a {part}")
    if (path / "model.json").is_file():
        return _read_firth(path)
    if (path / "config.json").is_file():
        return _read_published(path)
    if tensorflow.find(path) or openai_gpt.find(path):
        return _read_original(path, part)
    raise FirthError(
        f"{path} holds no model: expected config.json (published), model.json (Firth), "
        "checkpoints/ (a workdir) or an original checkpoint of BERT, ALBERT, ELECTRA, XLNet or GPT"
    )


def _download(name: str) -> str:
    """Fetch `org/name[@revision]` from the Hugging Face hub, data files only."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    try:
        return snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "README.md"],
            ignore_patterns=["*/*"],  # other formats' folders, and pickles stay where they are
        )
    except Exception as error:  # the network, the name, a licence to accept: the hub's own words
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise FirthError(f"hf:{name} cannot be downloaded: {reason}") from None


def _read_published(path: Path) -> Saved:
    config = read_json(path / "config.json")
    tensors, files = {}, {}
    for file in _weight_files(path):
        tensors |= read_safetensors(file)
        files[file.name] = _header(file)
    saved, unknown = _from_tensors(path, config, path / "config.json", tensors)
    as_it_was = {"config": _text(path / "config.json"), "files": None if unknown else files}
    if WEIGHTS not in files:
        as_it_was["index"] = _text(path / INDEX)
    return dataclasses.replace(saved, published=as_it_was)


def _read_original(path: Path, part: str) -> Saved:
    """A folder with a TensorFlow checkpoint of the original code, or with GPT's arrays."""
    if tensorflow.find(path):
        config, tensors = tensorflow.read_original(path, part)
    else:
        config, tensors = openai_gpt.read_original(path)
    return dataclasses.replace(_from_tensors(path, config, path, tensors)[0], layout="original")


def _from_tensors(path: Path, config: dict, where: Path, tensors: dict) -> tuple[Saved, list[str]]:
    """The model of tensors under their published names, and those it has no place for."""
    described = published.read_config(config, where)
    flat, heads, unknown = published.read_tensors(tensors, described, config, path)
    if unknown:
        log.warning(
            "%s: no place for %d tensors, left out: %s",
            path,
            len(unknown),
            published.listed(unknown),
        )
    described["regression"] &= "classifier" in heads
    saved = Saved(
        **described,
        heads=heads,
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="published",
        dtypes=tuple(sorted({tensor.dtype.name for tensor in tensors.values()} - BUFFER_DTYPES)),
        tokenizer_path=_tokenizer_path(path),
    )
    return saved, unknown


def _weight_files(path: Path) -> list[Path]:
    """model.safetensors, or the shards that the index lists."""
    if (path / WEIGHTS).is_file():
        return [path / WEIGHTS]
    if (path / INDEX).is_file():
        shards = read_json(path / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(n, str) for n in shards.values()):
            raise FirthError(f"{path / INDEX}: weight_map must map tensors to files")
        names = sorted(set(shards.values()))
        for name in names:
            if Path(name).name != name or not (path / name).is_file():
                raise FirthError(f"{path / INDEX} names the shard {name!r}, which is not in {path}")
        return [path / name for name in names]
    refused = sorted({file.name for pattern in REFUSED for file in path.glob(pattern)})
    if refused:
        raise FirthError(
            f"{path} holds its weights as {published.listed(refused)}: a pickle, or another format "
            "that may execute code, is never loaded; save them as model.safetensors first (in "
            "transformers: AutoModel.from_pretrained(...).save_pretrained(...))"
        )
    raise FirthError(f"{path} holds no weights: expected {WEIGHTS} or {INDEX}")


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file; FirthError naming the file when it is not one."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return file.get_tensors()
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise FirthError(
            f"{path} is truncated, damaged or not a safetensors file ({error}); copy it again"
        ) from None


def _header(path: Path) -> str:
    """The JSON header of a (valid) safetensors file, byte for byte."""
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little")).decode()


def _read_firth(path: Path) -> Saved:
    described, heads, whole = read_description(path)
    file = path / "params.safetensors"
    if not file.is_file():
        raise FirthError(f"{file} is missing: {path} has a model.json but no parameters")
    if sha256(file) != whole.get("sha256"):
        raise FirthError(f"{file} does not match the sha256 in model.json: damaged; copy it again")
    flat = read_safetensors(file)
    published.check_params(flat, described, heads, file)
    return Saved(
        **described,
        heads=heads,
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="firth",
        tokenizer_path=_tokenizer_path(path),
        published=whole.get("published"),
    )


def _read_workdir(path: Path, part: str) -> Saved:
    """The parameters of the best checkpoint, or of the newest where none is measured."""
    described, heads, whole = read_description(path)
    generator = whole.get("generator")
    if part == "generator" and not generator:
        raise FirthError(f"{path} trained no generator of its own")
    options = dict(recipe.read(path).get("checkpoint", {})) | {"best": whole.get("best", "")}
    saves = Checkpoints(path, **options, read_only=True)
    try:
        step, params = saves.restore_params()
    finally:
        saves.close()
    params = to_layout(params, scan=False)
    if part == "generator":
        own, heads = params["generator"], ("mlm",)
        shared = params["encoder"] if generator["tied"] else {}
        embeddings = {name: shared[name] for name in EMBEDDINGS & shared.keys()}
        params = own | {"encoder": embeddings | own["encoder"]}
        spec = published.complete_spec(generator["model"], path / "model.json")
        described = dict(spec=spec, num_labels=2, labels=None, regression=False)
    params = {name: params[name] for name in ("encoder", *heads) if name in params}
    flat = flatten_dict(params, sep="/")
    published.check_params(flat, described, heads, path / "checkpoints" / str(step))
    return Saved(
        **described,
        heads=heads,
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="workdir",
        tokenizer_path=_tokenizer_path(path / "tokenizer"),
    )


def read_description(path: Path) -> tuple[dict, tuple[str, ...], dict]:
    """({spec, num_labels, labels, regression}, heads, everything) of a directory's model.json."""
    file = path / "model.json"
    whole = read_json(file)
    if whole.get("firth") != 1:
        raise FirthError(f"{file}: firth={whole.get('firth')!r}; this Firth reads version 1")
    spec, heads, labels = whole.get("model"), whole.get("heads"), whole.get("labels")
    texts = isinstance(heads, list) and all(isinstance(head, str) for head in heads)
    if not isinstance(spec, dict) or not texts or not isinstance(labels, list | None):
        raise FirthError(f"{file} is damaged: expected model {{...}}, heads [...] and labels")
    spec = published.complete_spec(spec, file)
    if unknown := [head for head in heads if head not in HEADS and ":" not in head]:
        raise FirthError(f"{file}: there is no head {unknown[0]!r}")
    published.check_field(whole.get("num_labels"), 2, f"{file}: num_labels")
    described = dict(
        spec=spec,
        num_labels=whole["num_labels"],
        labels=tuple(labels) if labels else None,
        regression=bool(whole.get("regression")),
    )
    return described, tuple(heads), whole


def _tokenizer_path(path: Path) -> Path | None:
    return path if any(any(path.glob(pattern)) for pattern in VOCABULARIES) else None


def _text(path: Path) -> str:
    """A file's text, line ends untouched."""
    return path.read_bytes().decode()
