"""`firth represent`: texts to vectors, in memory independent of the number of texts.

firth represent --model DIR --input sentences.txt --output vectors.npz --pool=mean
"""

import array
import itertools
import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.inference.batching import pad_rows
from firth.inference.encoder import Encoder
from firth.inference.inputs import Text
from firth.models.model import last_real
from firth.progress import Progress

SORTED_BATCHES = {"none": 8, "cls": 64, "mean": 64}  # batches of texts sorted by length at a time


def represent(
    encoder: Encoder,
    lines: Iterable[tuple[str, Text]],
    output,
    *,
    layers: Sequence[int] = (-1,),
    pool: str = "mean",
    batch_size: int = 32,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the vectors of texts to an .npz file, rows in the order of the texts.

    Args:
      encoder: the model.
      lines: (name in errors, text or pair of texts).
      output: the file. `layers` int64 [n]: 0 are the embeddings, N is the last layer. With pool
        "cls" or "mean", `vectors` float32 [texts, n, D]. With pool "none", `hidden` float32
        [tokens, n, D] and `tokens`, strings [tokens], the tokens of all texts in order, specials
        included; text i has those from `offsets[i]` to `offsets[i + 1]`. One layer: no axis n.
      layers: layer numbers; negative numbers count from the last.
      pool: "cls" takes the first token, or in XLNet, Transformer-XL and GPT the last. "mean" takes
        the average over the text's tokens, specials included, as sentence-transformers does.
        "none" keeps every token.
      batch_size: rows computed at a time.
      max_length: cut texts to this many tokens. With None a text must fit the position table.

    Returns the number of texts. Raises FirthError for an unknown layer, a text that is too long, no
    texts, or a file that cannot be written. An error leaves an existing file as it was.
    """
    chosen = choose_layers(layers, encoder.saved.spec["num_layers"])
    if max_length is not None and not 3 <= max_length <= encoder.max_length:
        raise FirthError(
            f"max_length={max_length} is outside 3 .. {encoder.max_length}, the model's positions"
        )
    output, pieces = Path(output), pool == "none"
    offsets = array.array("q", [0])
    try:
        with (
            tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder,
            open(f"{folder}/vectors", "w+b") as vectors,
            open(f"{folder}/tokens", "w+b") as tokens,
        ):
            for ids, vector in _vectors(encoder, lines, chosen, pool, batch_size, max_length):
                vectors.write(vector.tobytes())
                tokens.write(ids.tobytes())
                offsets.append(offsets[-1] + len(ids))
                if progress:
                    progress.update(len(offsets) - 1, f"{offsets[-1]:,} tokens")
            if len(offsets) == 1:
                raise FirthError("there are no texts")
            entries = {"layers": _whole(np.array(chosen))}
            count = offsets[-1] if pieces else len(offsets) - 1
            shape = (len(chosen),) * (len(chosen) > 1) + (encoder.saved.spec["hidden_size"],)
            floats = (np.dtype(np.float32), (count, *shape), _blocks(vectors))
            entries["hidden" if pieces else "vectors"] = floats
            if pieces:
                table = np.array(encoder.tokenizer.vocab)
                strings = (table[np.frombuffer(b, np.int32)].tobytes() for b in _blocks(tokens))
                entries["tokens"] = (table.dtype, (count,), strings)
                entries["offsets"] = _whole(np.array(offsets))
            _write_npz(f"{folder}/npz", entries)
            os.replace(f"{folder}/npz", output)
    except OSError as error:
        raise FirthError(f"{output} cannot be written: {error.strerror or error}") from None
    return len(offsets) - 1


def choose_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Layer numbers 0 .. N from numbers that may count from the end; FirthError for others."""
    for layer in layers:
        if not -num_layers - 1 <= layer <= num_layers:
            raise FirthError(
                f"there is no layer {layer}: this model has 0 (the embeddings) to {num_layers}, "
                f"or -{num_layers + 1} to -1 counted from the last"
            )
    return tuple(layer % (num_layers + 1) for layer in layers)


def _vectors(encoder, lines, layers, pool, batch_size, max_length) -> Iterator:
    """(ids, vector) of each text in turn: [n, D], or [tokens, n, D] without pooling.

    Texts of similar length share a batch. The device computes the next batch while the host copies
    the last one.
    """

    @jax.jit
    def select(params, tokens_BL, segments_BL, mask_BL):
        out, _ = encoder.model.apply({"params": params}, tokens_BL, segments_BL, mask_BL)
        hidden_BLnD = jnp.stack([out.hidden[i] for i in layers], 2).astype(jnp.float32)
        if pool == "none":
            return hidden_BLnD
        if pool == "cls":
            at_end = encoder.model.encoder.config.classifier_pooling == "last"
            places_B = last_real(mask_BL) if at_end else jnp.zeros(len(mask_BL), int)
            return hidden_BLnD[jnp.arange(len(mask_BL)), places_B]
        weights_BL = mask_BL / jnp.maximum(mask_BL.sum(1, keepdims=True), 1)
        return jnp.einsum("BL,BLnD->BnD", weights_BL, hidden_BLnD)

    lines = iter(lines)
    while window := list(itertools.islice(lines, SORTED_BATCHES[pool] * batch_size)):
        names, texts = zip(*window, strict=True)
        truncate = max_length is not None
        tokenised = encoder.tokenise(
            texts,
            limit=max_length,
            truncate=truncate,
            names=names,
            advice="shorten it, or set a maximum length",
        )
        order = sorted(range(len(tokenised)), key=lambda i: len(tokenised[i][0]))
        vectors, previous = [None] * len(tokenised), None
        for begin in [*range(0, len(order), batch_size), None]:
            started = None
            if begin is not None:
                rows = order[begin : begin + batch_size]
                batch = pad_rows(encoder.pad([tokenised[i] for i in rows]), batch_size)
                started = rows, select(encoder.params, *batch)
            if previous:
                for row, vector in zip(previous[0], np.asarray(previous[1]), strict=False):
                    vectors[row] = vector[: len(tokenised[row][0])] if pool == "none" else vector
            previous = started
        yield from zip((ids for ids, _ in tokenised), vectors, strict=True)


def _blocks(file, size: int = 1 << 20) -> Iterator[bytes]:
    """The bytes of a file, in blocks."""
    file.seek(0)
    while block := file.read(size):
        yield block


def _whole(values: np.ndarray):
    return values.dtype, values.shape, [values.tobytes()]


def _write_npz(path: str, entries: dict):
    """Write {name: (dtype, shape, blocks of bytes)} as numpy.savez would, one block at a time."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, (dtype, shape, blocks) in entries.items():
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": shape,
            }
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                for block in blocks:
                    entry.write(block)
