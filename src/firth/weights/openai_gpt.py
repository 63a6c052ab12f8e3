"""Read the original checkpoint of GPT (openai/finetune-transformer-lm) under published names.

params_shapes.json lists the shapes of all tensors: the position table, the word table, then twelve
tensors for each layer. params_0.npy, params_1.npy ... are one long array of all their numbers; a
tensor may begin in one file and end in another.
"""

import math
from pathlib import Path

import numpy as np

from firth.errors import FirthError
from firth.storage.local import read_json

SHAPES = "params_shapes.json"
HEAD_WIDTH = 64
LAYER = (  # published names of a layer's tensors
    "attn.c_attn.weight",
    "attn.c_attn.bias",
    "attn.c_proj.weight",
    "attn.c_proj.bias",
    "ln_1.weight",
    "ln_1.bias",
    "mlp.c_fc.weight",
    "mlp.c_fc.bias",
    "mlp.c_proj.weight",
    "mlp.c_proj.bias",
    "ln_2.weight",
    "ln_2.bias",
)


def is_checkpoint(path: Path) -> bool:
    """Whether a folder holds an original checkpoint of GPT."""
    return (path / SHAPES).is_file()


def read_original(path: Path) -> tuple[dict, dict]:
    """(config.json, {published name: array}) of a folder with the original checkpoint of GPT.

    Raises FirthError if files are missing, damaged or not GPT's.
    """
    file = path / SHAPES
    shapes = read_json(file, list)
    if not all(_is_shape(shape) for shape in shapes):
        raise FirthError(f"{file}: expected a list of shapes, each a list of positive integers")
    layers, rest = divmod(len(shapes) - 2, len(LAYER))
    if layers < 1 or rest or len(shapes[0]) != 2 or len(shapes[1]) != 2:
        raise FirthError(
            f"{file} lists {len(shapes)} tensors; GPT has its positions and tokens, and "
            f"{len(LAYER)} a layer"
        )
    (positions, hidden), (tokens, _) = shapes[:2]
    numbers = _numbers(path)
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    if ends[-1] != len(numbers):
        raise FirthError(
            f"{path}: the params_*.npy hold {len(numbers)} numbers, but {SHAPES} asks for "
            f"{ends[-1]}; copy them again"
        )
    names = ["positions_embed.weight", "tokens_embed.weight"]
    names += [f"h.{i}.{name}" for i in range(layers) for name in LAYER]
    tensors = {}
    for name, shape, flat in zip(names, shapes, np.split(numbers, ends[:-1]), strict=True):
        # A dense layer is a convolution one token wide: [1, input, output].
        tensor = flat.reshape(shape[1:] if len(shape) == 3 and shape[0] == 1 else shape)
        tensors[f"transformer.{name}"] = tensor
    config = dict(
        model_type="openai-gpt",
        architectures=["OpenAIGPTLMHeadModel"],
        afn="gelu",
        vocab_size=tokens,
        n_positions=positions,
        n_embd=hidden,
        n_layer=layers,
        n_head=max(hidden // HEAD_WIDTH, 1),
    )
    return config, tensors


def _is_shape(shape) -> bool:
    return isinstance(shape, list) and all(type(n) is int and 0 < n < 2**31 for n in shape)


def _numbers(path: Path) -> np.ndarray:
    """The arrays of params_0.npy, params_1.npy ... in one, float32 [n]."""
    parts = []
    while (file := path / f"params_{len(parts)}.npy").is_file():
        try:
            part = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FirthError(f"{file} is truncated or no .npy file ({error})") from None
        if part.dtype != np.float32 or part.ndim != 1:
            raise FirthError(f"{file} holds {part.dtype} {list(part.shape)}, expected float32 [n]")
        parts.append(part)
    if not parts:
        raise FirthError(f"{file} is missing; it came with {SHAPES}")
    return np.concatenate(parts)
