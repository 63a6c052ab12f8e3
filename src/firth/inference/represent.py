"""`firth represent`: texts to a file of vectors, in memory independent of the number of texts.

firth represent --model DIR --input sentences.txt --output vectors.npz --pool=mean
"""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from firth.errors import FirthError
from firth.inference.encoder import Encoder
from firth.inference.inputs import Text
from firth.inference.vector_files import find_format
from firth.inference.vectors import Pooling, choose_layers, vectors
from firth.inference.word_vectors.model import WordModel
from firth.progress import Progress


def represent(
    encoder: Encoder | WordModel,
    lines: Iterable[tuple[str, Text]],
    output,
    *,
    layers: Sequence[int] = (-1,),
    pool: str = "mean",
    normalize: bool = False,
    mix: Sequence[float] = (),
    gamma: float = 1.0,
    batch_size: int = 32,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Write the vectors of texts to a file, rows in the order of the texts.

    Args:
      encoder: the model.
      lines: (name in errors, text or pair of texts).
      output: the file; its ending says the format (`firth.inference.vector_files`).
      layers: layer numbers; negative numbers count from the last.
      pool, normalize, mix, gamma: see `firth.inference.vectors.Pooling`.
      batch_size: rows computed at a time.
      max_length: cut texts to this many tokens. With None a text must fit the position table.

    Returns the number of texts. Raises FirthError for an unknown layer, a text that is too long, no
    texts, or a file that cannot be written. An error leaves an existing file as it was.
    """
    output = Path(output)
    writer_of = find_format(output)
    chosen = choose_layers(layers, encoder.saved.spec["num_layers"])
    pooling = Pooling(chosen, pool, normalize, tuple(mix), gamma)
    if isinstance(encoder, WordModel):
        found = encoder.texts(lines, pooling, max_length)
    else:
        found = vectors(encoder, lines, pooling, batch_size, max_length)
    count = tokens = 0
    try:
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as folder:
            writer = writer_of(encoder, pooling, Path(folder))
            for count, vector in enumerate(found, 1):
                writer.add(vector)
                tokens += len(vector.ids)
                if progress:
                    progress.update(count, f"{tokens:,} tokens")
            if not count:
                raise FirthError("there are no texts")
            writer.close()
            os.replace(writer.path, output)
    except OSError as error:
        raise FirthError(f"{output} cannot be written: {error.strerror or error}") from None
    return count
