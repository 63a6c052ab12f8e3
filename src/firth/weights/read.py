"""Read models from disk. A model directory has one of four layouts:

    published   config.json, model.safetensors (or shards with an index), the tokenizer's files
    original    a TensorFlow checkpoint with the JSON config of its code (ELECTRA has none), or
                params_shapes.json and params_*.npy of GPT
    firth       model.json, params.safetensors (flat parameter paths), the tokenizer's files
    workdir     model.json, checkpoints/<step>/, tokenizer/: the folder of a run of `firth train`

ELMo's published layout is another one: *options.json and *weights.hdf5 (`firth.weights.elmo`).

A Firth directory that was made from a published one holds a copy of its config.json and of the
headers of its weight files. With these, `write_published` restores the published files byte for
byte. Weights are read from safetensors, since a pickle or a Keras file may execute code. TensorFlow
and GPT checkpoints hold plain bytes, and ELMo's HDF5 files plain arrays.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
from pathlib import Path

import jax
import numpy as np
import safetensors
from flax.traverse_util import flatten_dict, unflatten_dict

from firth import recipe
from firth.errors import FirthError
from firth.models.logistic.files import is_logistic
from firth.models.model import EMBEDDINGS, Model, create, to_layout
from firth.models.ngram.files import is_ngram
from firth.models.word_vectors.files import is_word_vectors
from firth.storage.local import read_json, sha256
from firth.storage.places import instead
from firth.storage.remote import is_url
from firth.tokenizers.load import load_tokenizer
from firth.training.checkpoint import Checkpoints
from firth.training.efficient.lora import merge
from firth.training.remote_workdir import download_workdir
from firth.weights import openai_gpt, tensorflow
from firth.weights.config import read_config
from firth.weights.description import NAME, Description, complete_spec, read_description
from firth.weights.elmo.exchange import find_elmo, read_elmo
from firth.weights.hub import download
from firth.weights.names import check_params, listed, read_tensors
from firth.weights.packaged import PACKAGES, find_packaged

log = logging.getLogger("firth")

BUFFER_DTYPES = {"int64", "uint8", "bool"}
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
REFUSED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.ckpt.*", "*.h5", "*.keras", "*.msgpack", "*.pkl")


@dataclasses.dataclass(frozen=True)
class Saved(Description):
    """A model in memory: its description and its parameters.

    params: nested, float32 numpy arrays (perhaps memory-mapped), layers unrolled.
    source: the directory that it was read from.
    layout: of that directory; "published", "original", "firth" or "workdir".
    dtypes: of the parameters in the files.
    tokenizer_path: a directory with its tokenizer, or None.
    published: the text of the published files without their tensors, or None. `config` is
      config.json, `files` is {name of a safetensors file: its header} (None where a tensor was left
      out), `index` is the index of the shards, if there is one.
    step: of the checkpoint, of a workdir; else None.
    """

    params: dict
    source: Path
    layout: str
    dtypes: tuple[str, ...] = ("float32",)
    tokenizer_path: Path | None = None
    published: dict | None = None
    step: int | None = None

    def model(self, heads=None, **execution) -> Model:
        """The module with all heads, or those given. `execution` sets scan, remat and dtype."""
        heads = self.heads if heads is None else heads
        return create(self.spec | execution, heads, self.num_labels, tasks=self.outputs)

    def tokenizer(self):
        """Load the tokenizer; None if there is none.

        Raises FirthError if its vocabulary is larger than the model's.
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

    def digest(self, *said) -> str:
        """A digest of the architecture, the parameters, and what is `said`, values of JSON."""
        text = json.dumps([self.spec, *said], sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16)
        for name, leaf in sorted(flatten_dict(self.params, sep="/").items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(leaf))
        return digest.hexdigest()


# ---------------------------------------------------------------------------------- reading


def read_model(source, part: str = "model") -> Saved:
    """Read a model from a published directory, a Firth directory, a workdir or "hf:org/name".

    A workdir may be at a URL (gs://...); this copies it first. A name of `packaged.PACKAGES`, such
    as "minilm", stands for the weights of a Python package where no such directory exists. `part`
    "generator" reads the generator that a run (or the original code of ELECTRA) trained beside the
    model.

    Raises FirthError naming the file that is missing, damaged or not supported.
    """
    path = find_model(source)
    if (path / "checkpoints").is_dir():
        return _read_workdir(path, part)
    if part != "model" and not tensorflow.find_checkpoint(path):
        raise FirthError(f"{path} is no workdir; only the workdir of a run holds a {part}")
    if is_ngram(path):
        raise FirthError(
            f"{path} holds an n-gram model, which has no layers and no vectors; `firth score`, "
            "`firth generate` and `firth evaluate` read it"
        )
    if is_logistic(path):
        raise FirthError(
            f"{path} holds a logistic regression, which has no layers and no vectors; `firth "
            "predict` and `firth evaluate` read it"
        )
    if is_word_vectors(path):
        raise FirthError(
            f"{path} holds word vectors, which have no layers; `firth neighbours`, `firth "
            "analogy`, `firth represent` and `firth convert` read them"
        )
    if (path / NAME).is_file():
        return _read_firth(path)
    if (path / "config.json").is_file():
        return _read_published(path)
    if tensorflow.find_checkpoint(path) or openai_gpt.is_checkpoint(path):
        return _read_original(path, part)
    if find_elmo(path):
        return _read_elmo(path)
    raise FirthError(
        f"{path} holds no model: expected config.json (published), model.json (Firth), "
        "checkpoints/ (a workdir), an original checkpoint of BERT, ALBERT, ELECTRA, XLNet or GPT, "
        "or *options.json with *weights.hdf5 (ELMo)" + instead(path)
    )


def find_model(source) -> Path:
    """The local directory of a model, whose name is as for `read_model`.

    Raises FirthError for a file, for a directory that does not exist, and for a name that cannot
    be downloaded.
    """
    if str(source).startswith("hf:"):
        return download(str(source).removeprefix("hf:"))
    path = download_workdir(source) if is_url(source) else Path(source)
    if str(source) in PACKAGES and not path.exists():
        path = find_packaged(str(source))
    if not path.is_dir():
        kind = "is a file" if path.exists() else "does not exist"
        raise FirthError(
            f"{path} {kind}; expected a directory with a model, hf:org/name, or "
            f"{' or '.join(PACKAGES)}"
        )
    return path


def has_head(source, head: str, sign: str) -> bool:
    """Whether the name of a model, as for `read_model`, is that of one with this head.

    `sign` is part of its class in transformers. A local directory that is no model has none; a name
    of the hub is downloaded.
    """
    path = find_model(source) if str(source).startswith("hf:") else Path(source)
    if is_logistic(path):
        return False
    if (path / NAME).is_file():
        return head in read_description(path)[0].heads
    if not (path / "config.json").is_file():
        return False
    classes = read_json(path / "config.json").get("architectures")
    return isinstance(classes, list) and any(sign in str(name) for name in classes)


def find_tokenizer(source) -> Path:
    """The directory of the tokenizer of a model, whose name is as for `read_model`."""
    path = find_model(source)
    return path / "tokenizer" if (path / "checkpoints").is_dir() else path


def read_family(source) -> str:
    """The family of a model, whose name is as for `read_model`; its parameters are not read.

    Raises FirthError as `read_model` does.
    """
    path = find_model(source)
    if (path / NAME).is_file():
        return read_description(path)[0].spec["family"]
    if (path / "config.json").is_file():
        file = path / "config.json"
        return read_config(read_json(file), file).spec["family"]
    return read_model(path).spec["family"]


def _read_published(path: Path) -> Saved:
    config = read_json(path / "config.json")
    tensors, files = {}, {}
    for file in _weight_files(path):
        tensors |= read_safetensors(file)
        files[file.name] = _header(file)
    saved, unused = _from_tensors(path, config, path / "config.json", tensors)
    texts = {"config": _text(path / "config.json"), "files": None if unused else files}
    if WEIGHTS not in files:
        texts["index"] = _text(path / INDEX)
    return dataclasses.replace(saved, published=texts)


def _read_original(path: Path, part: str) -> Saved:
    """The model of a TensorFlow checkpoint of the original code, or of GPT's arrays."""
    if tensorflow.find_checkpoint(path):
        config, tensors = tensorflow.read_original(path, part)
    else:
        config, tensors = openai_gpt.read_original(path)
    return dataclasses.replace(_from_tensors(path, config, path, tensors)[0], layout="original")


def _read_elmo(path: Path) -> Saved:
    """A released ELMo; its softmax is a head, if the file has one."""
    spec, heads, flat, options = read_elmo(path)
    description = Description(spec, heads, 2, None, False)
    check_params(flat, description, path)
    return Saved(
        **vars(description),
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="published",
        published={"options": options},
    )


def _from_tensors(path: Path, config: dict, where: Path, tensors: dict) -> tuple[Saved, list[str]]:
    """(the model of published tensors, names of tensors that have no place in it)."""
    description, flat, unused = read_tensors(tensors, read_config(config, where), config, path)
    if unused:
        message = "%s: no place for %d tensors, left out: %s"
        log.warning(message, path, len(unused), listed(unused))
    saved = Saved(
        **vars(description),
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="published",
        dtypes=tuple(sorted({tensor.dtype.name for tensor in tensors.values()} - BUFFER_DTYPES)),
        tokenizer_path=_tokenizer_path(path),
    )
    return saved, unused


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
            f"{path} holds its weights as {listed(refused)}: a pickle, or another format "
            "that may execute code, is never loaded; save them as model.safetensors first (in "
            "transformers: AutoModel.from_pretrained(...).save_pretrained(...))"
        )
    raise FirthError(f"{path} holds no weights: expected {WEIGHTS} or {INDEX}")


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """{name: array} of a safetensors file; FirthError naming the file if it is damaged."""
    try:
        with safetensors.safe_open(path, framework="np") as file:
            return file.get_tensors()
    except (safetensors.SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise FirthError(
            f"{path} is truncated, damaged or not a safetensors file ({error}); copy it again"
        ) from None


def _header(path: Path) -> str:
    """The JSON header of a valid safetensors file, byte for byte."""
    with path.open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little")).decode()


def _read_firth(path: Path) -> Saved:
    description, whole = read_description(path)
    file = path / "params.safetensors"
    if not file.is_file():
        raise FirthError(f"{file} is missing: {path} has a model.json but no parameters")
    if sha256(file) != whole.get("sha256"):
        raise FirthError(f"{file} does not match the sha256 in model.json: damaged; copy it again")
    flat = read_safetensors(file)
    check_params(flat, description, file)
    return Saved(
        **vars(description),
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="firth",
        tokenizer_path=_tokenizer_path(path),
        published=whole.get("published"),
    )


def _read_workdir(path: Path, part: str) -> Saved:
    """The model of the best checkpoint, or of the newest one if the run measures nothing."""
    description, whole = read_description(path)
    generator = whole.get("generator")
    if part == "generator" and not generator:
        raise FirthError(f"{path} trained no generator of its own")
    options = dict(recipe.read(path).get("checkpoint", {})) | {"best": whole.get("best", "")}
    with _without_notes():
        saves = Checkpoints(path, **options, read_only=True)
        try:
            step, params = saves.restore_params()
        finally:
            saves.close()
    params = to_layout(jax.device_get(merge(params)), scan=False)
    if part == "generator":
        own = params["generator"]
        shared = params["encoder"] if generator["tied"] else {}
        embeddings = {name: shared[name] for name in EMBEDDINGS & shared.keys()}
        params = own | {"encoder": embeddings | own["encoder"]}
        spec = complete_spec(generator["model"], path / NAME)
        description = Description(spec, ("mlm",), 2, None, False)
    names = ("encoder", *description.heads)  # a checkpoint may hold a teacher too
    flat = flatten_dict({name: params[name] for name in names if name in params}, sep="/")
    check_params(flat, description, path / "checkpoints" / str(step))
    return Saved(
        **vars(description),
        params=unflatten_dict(flat, sep="/"),
        source=path,
        layout="workdir",
        tokenizer_path=_tokenizer_path(path / "tokenizer"),
        step=step,
    )


@contextlib.contextmanager
def _without_notes():
    """Silence Orbax in a block: it warns of files that a checkpoint of a run need not have."""
    notes = logging.getLogger("absl")
    before = notes.level
    notes.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        notes.setLevel(before)


def _tokenizer_path(path: Path) -> Path | None:
    return path if any(any(path.glob(pattern)) for pattern in VOCABULARIES) else None


def _text(path: Path) -> str:
    """A file's text, line ends untouched."""
    return path.read_bytes().decode()
