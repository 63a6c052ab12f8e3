"""Read a TensorFlow checkpoint (`NAME.index`, `NAME.data-00000-of-0000N`) without TensorFlow.

The index is a sorted string table in LevelDB's format, uncompressed. It maps the name of a tensor
to a `BundleEntryProto`: dtype, shape, data file, and the place of its bytes there.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from firth.errors import FirthError

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5  # after each block: its compression, and a checksum
DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64, 19: np.float16}  # types.proto


def read_checkpoint(prefix: Path) -> dict[str, np.ndarray]:
    """{name: array} of every tensor of a dtype in DTYPES, memory-mapped.

    Raises FirthError naming the file that is missing, truncated or not a checkpoint.
    """
    index = prefix.with_name(prefix.name + ".index")
    try:
        entries = dict(_table(index.read_bytes()))
    except OSError as error:
        raise FirthError(f"cannot read {index}: {error.strerror}") from None
    except (ValueError, IndexError, struct.error) as error:
        raise FirthError(f"{index} is truncated or no TensorFlow checkpoint ({error})") from None
    header = _fields(entries.pop(b"", b""))
    shards = header.get(1, [1])[0]
    files, tensors = {}, {}
    for name, entry in entries.items():
        fields = _fields(entry)
        dtype = DTYPES.get(fields.get(1, [0])[0])
        if dtype is None or 7 in fields:  # strings and such; a slice of a partitioned variable
            continue
        shard = fields.get(3, [0])[0]
        file = prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")
        if file not in files:
            if not file.is_file():
                raise FirthError(f"{index} names {file.name}, which is not there")
            files[file] = np.memmap(file, np.uint8, "r")
        offset, size = fields.get(4, [0])[0], fields.get(5, [0])[0]
        shape = _shape(fields.get(2, [b""])[0])
        if size != np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64)):
            raise FirthError(f"{index}: {name.decode()} has {size} bytes for shape {list(shape)}")
        if offset + size > len(files[file]):
            raise FirthError(f"{file} is truncated: {name.decode()} lies beyond its end")
        tensors[name.decode()] = files[file][offset : offset + size].view(dtype).reshape(shape)
    return tensors


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of a sorted string table, in order."""
    if len(data) < _FOOTER or struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise ValueError("no footer")
    place = len(data) - _FOOTER
    _, place = _varint(data, place)  # the block of metadata, of which there is none
    _, place = _varint(data, place)
    offset, place = _varint(data, place)
    size, _ = _varint(data, place)
    for _, handle in _block(data, offset, size):
        start, place = _varint(handle, 0)
        yield from _block(data, start, _varint(handle, place)[0])


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of a block. A key is stored as a prefix of the key before it, and the rest."""
    block = data[offset : offset + size + _TRAILER]
    if len(block) < size + _TRAILER or block[size]:
        raise ValueError("a block is cut off or compressed")
    restarts = struct.unpack("<I", block[size - 4 : size])[0]
    end, place, key = size - 4 * (restarts + 1), 0, b""
    while place < end:
        shared, place = _varint(block, place)
        unshared, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + unshared]
        place += unshared
        yield key, block[place : place + length]
        place += length


def _fields(message: bytes) -> dict[int, list]:
    """{field number: values} of a protocol buffer: ints, or bytes for length-delimited fields."""
    fields, place = {}, 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
        elif kind == 2:
            length, place = _varint(message, place)
            value, place = message[place : place + length], place + length
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
            value, place = message[place : place + length], place + length
        else:
            raise ValueError(f"a field of kind {kind}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _shape(message: bytes) -> tuple[int, ...]:
    """The shape in a TensorShapeProto."""
    return tuple(_fields(dim).get(1, [0])[0] for dim in _fields(message).get(2, []))


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """(a variable-length integer, seven bits a byte; the place after it)."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
