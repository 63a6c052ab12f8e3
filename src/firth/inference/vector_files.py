"""Files of vectors: .npz, .npy, .jsonl and .parquet, written in memory that does not grow.

.npz     `layers` int64 [n]: 0 are the embeddings, N is the last layer. With pool "cls" or "mean",
         `vectors` float32 [texts, n, D]. With pool "none", `hidden` float32 [tokens, n, D] and
         `tokens`, strings [tokens], the tokens of all texts in order, specials included; text i has
         those from `offsets[i]` to `offsets[i + 1]`. `model`, `pool`, `normalized`: whose they are.
.npy     `vectors` alone.
.jsonl   an object a text: `text` (two for a pair) and `vector`; or `tokens` and `vectors`.
.parquet columns `text`, `text_pair` and `vector`, of one layer.

One layer, or a mix of layers: no axis n. A .npz has the `shares` of a mix, float32 [layers].
"""

import abc
import array
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firth.errors import FirthError
from firth.inference.vectors import Pooling, Vector
from firth.storage.places import absolute

ROWS = 1024  # of a parquet file's group


class Writer(abc.ABC):
    """Writes vectors to `path`, with files of its own in the same `folder`.

    `add` takes one text after another; `close` completes the file.
    """

    def __init__(self, encoder, pooling: Pooling, folder: Path):
        self.encoder, self.pooling, self.folder = encoder, pooling, folder
        self.path = folder / "output"
        self.one_layer = pooling.count == 1
        self.open()

    @abc.abstractmethod
    def open(self):
        """Open what is written to; FirthError for vectors that the format does not hold."""

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """Values without the axis of layers where there is one layer."""
        return values[..., 0, :] if self.one_layer else values

    @abc.abstractmethod
    def add(self, vector: Vector):
        """Write one text's vector."""

    @abc.abstractmethod
    def close(self):
        """Complete the file."""


class Npy(Writer):
    """`vectors` as numpy.save writes them."""

    def open(self):
        """A file for the values, whose number is known at the end."""
        if self.pooling.pool == "none":
            raise FirthError("a .npy file holds a vector a text; take .npz or .jsonl for tokens")
        self.values, self.rows = (self.folder / "values").open("w+b"), 0

    def add(self, vector):
        """Keep its values."""
        self.values.write(self.shaped(vector.values).tobytes())
        self.rows += 1

    @property
    def shape(self) -> tuple[int, ...]:
        """That of all vectors."""
        layers = () if self.one_layer else (self.pooling.count,)
        return (self.rows, *layers, self.encoder.saved.spec["hidden_size"])

    def close(self):
        """Write the header, then the values."""
        with self.path.open("wb") as file, self.values:
            _write_array(file, np.dtype(np.float32), self.shape, _blocks(self.values))


class Npz(Npy):
    """All arrays, as numpy.savez writes them."""

    def open(self):
        """Files for the values and, without pooling, for the tokens."""
        self.values, self.rows = (self.folder / "values").open("w+b"), 0
        self.tokens, self.offsets = (self.folder / "tokens").open("w+b"), array.array("q", [0])

    def add(self, vector):
        """Keep its values and its tokens."""
        super().add(vector)
        self.tokens.write(vector.ids.tobytes())
        self.offsets.append(self.offsets[-1] + len(vector.ids))

    def close(self):
        """Write one array after another."""
        every_token, kind = self.pooling.pool == "none", np.dtype(np.float32)
        self.rows = self.offsets[-1] if every_token else self.rows
        source = absolute(str(self.encoder.saved.source))
        entries = {"layers": _whole(np.array(self.pooling.layers))}
        entries |= {"model": _whole(np.array(source)), "pool": _whole(np.array(self.pooling.pool))}
        entries |= {"normalized": _whole(np.array(self.pooling.normalize))}
        if self.pooling.mix:
            entries["shares"] = _whole(self.pooling.shares)
        name = "hidden" if every_token else "vectors"
        entries[name] = kind, self.shape, _blocks(self.values)
        if every_token:
            table = np.array(self.encoder.tokenizer.vocab)
            parts = (table[np.frombuffer(b, np.int32)].tobytes() for b in _blocks(self.tokens))
            entries["tokens"] = table.dtype, (self.rows,), parts
            entries["offsets"] = _whole(np.array(self.offsets))
        with zipfile.ZipFile(self.path, "w") as archive, self.values, self.tokens:
            for name, entry in entries.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    _write_array(file, *entry)


class Jsonl(Writer):
    """A line a text."""

    def open(self):
        """The file itself."""
        self.file = self.path.open("w", encoding="utf-8")

    def add(self, vector):
        """Write a line."""
        values = self.shaped(vector.values).tolist()
        if self.pooling.pool == "none":
            names = [self.encoder.tokenizer.token(int(i)) for i in vector.ids]
            record = dict(text=vector.text, tokens=names, vectors=values)
        else:
            record = dict(text=vector.text, vector=values)
        self.file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def close(self):
        """Flush it."""
        self.file.close()


class Parquet(Writer):
    """Columns that data frames and vector stores read."""

    def open(self):
        """The file, by pyarrow."""
        if self.pooling.pool == "none" or not self.one_layer:
            raise FirthError("a .parquet file holds one vector a text; give one layer, and pool")
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise FirthError("a .parquet file needs pyarrow: pip install pyarrow") from None
        text, width = pyarrow.string(), self.encoder.saved.spec["hidden_size"]
        kinds = dict(text=text, text_pair=text, vector=pyarrow.list_(pyarrow.float32(), width))
        self.arrow, self.schema, self.rows = pyarrow, pyarrow.schema(kinds), []
        self.file = parquet.ParquetWriter(self.path, self.schema)

    def add(self, vector):
        """Keep a row until a group is full."""
        text, pair = (vector.text, None) if isinstance(vector.text, str) else vector.text
        self.rows.append(dict(text=text, text_pair=pair, vector=vector.values[0]))
        if len(self.rows) == ROWS:
            self._flush()

    def close(self):
        """Write the last group."""
        self._flush()
        self.file.close()

    def _flush(self):
        if self.rows:
            self.file.write_table(self.arrow.Table.from_pylist(self.rows, self.schema))
        self.rows = []


FORMATS: dict[str, type[Writer]] = {
    ".npz": Npz,
    ".npy": Npy,
    ".jsonl": Jsonl,
    ".parquet": Parquet,
}


def find_format(path: Path) -> type[Writer]:
    """The format of a file by its ending; FirthError for another ending."""
    if path.suffix not in FORMATS:
        raise FirthError(f"{path}: expected a file that ends in {', '.join(FORMATS)}")
    return FORMATS[path.suffix]


def read_vectors(path: Path) -> tuple[np.ndarray, dict]:
    """(vectors float32 [texts, D] of a .npz, .npy or .jsonl, what the file says of them).

    That is `model`, `pool` and `layer` (.npz), and `texts` (.jsonl), where the file has them.
    Raises FirthError for a file that is missing, damaged or of another kind.
    """
    known = {}
    if path.suffix not in (".npz", ".npy", ".jsonl"):
        raise FirthError(f"{path}: expected a .npz, .npy or .jsonl of `firth represent`")
    try:
        if path.suffix == ".npy":
            vectors = np.load(path, mmap_mode="r")
        elif path.suffix == ".jsonl":
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            vectors = np.array([record["vector"] for record in records], np.float32)
            known["texts"] = [record["text"] for record in records]
        else:
            with np.load(path) as archive:
                vectors = archive["vectors"]
                known |= {name: str(archive[name]) for name in ("model", "pool") if name in archive}
                known["layer"] = int(archive["layers"][-1])
    except OSError as error:
        raise FirthError(f"cannot read {path}: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, zipfile.BadZipFile):
        raise FirthError(
            f"{path} holds no vectors of texts as `firth represent` writes them; make it again"
        ) from None
    if vectors.ndim != 2 or not len(vectors):
        raise FirthError(
            f"{path} has vectors of shape {list(vectors.shape)}; expected [texts, width], one layer"
        )
    return vectors, known


def _write_array(file, dtype, shape, blocks):
    """Write an array as numpy.save would, one block of bytes at a time."""
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    for block in blocks:
        file.write(block)


def _whole(values: np.ndarray):
    return values.dtype, values.shape, [values.tobytes()]


def _blocks(file, size: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a file, in blocks."""
    file.seek(0)
    while block := file.read(size):
        yield block
