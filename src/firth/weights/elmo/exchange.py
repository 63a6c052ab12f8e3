"""ELMo's released layout, in and out: a file of options and one of arrays (HDF5).

A folder holds one `*options.json` and one `*weights.hdf5`, under any prefix, as the released models
have. HDF5 is read as plain arrays: links to other files and other kinds of objects are refused.
"""

import json
from pathlib import Path

import numpy as np
from flax.traverse_util import flatten_dict

from firth.errors import FirthError
from firth.storage.local import read_json
from firth.weights.description import complete_spec

OPTIONS, WEIGHTS = "options.json", "weights.hdf5"
# section of options.json, its key -> field of the Config
FIELDS = {
    ("lstm", "dim"): "cell_size",
    ("lstm", "n_layers"): "num_layers",
    ("lstm", "use_skip_connections"): "skip_connections",
    ("lstm", "cell_clip"): "cell_clip",
    ("lstm", "proj_clip"): "projection_clip",
    ("char_cnn", "activation"): "activation",
    ("char_cnn", "n_highway"): "highways",
    ("char_cnn", "n_characters"): "characters",
    ("char_cnn", "max_characters_per_token"): "max_characters",
}
OPTIONAL = {"skip_connections": False, "cell_clip": 0.0, "projection_clip": 0.0}
STATED = (*FIELDS.values(), "hidden_size", "character_width", "filter_widths", "filter_counts")
HEAD = "bilm"


def find_elmo(path: Path) -> tuple[Path, Path] | None:
    """The two files of a model in ELMo's layout, or None where the folder has no options.

    Raises FirthError for a folder with options and no weights, or with several of either.
    """
    options = sorted(path.glob(f"*{OPTIONS}"))
    if not options:
        return None
    weights = sorted(path.glob(f"*{WEIGHTS}"))
    for found, name in ((options, OPTIONS), (weights, WEIGHTS)):
        if len(found) != 1:
            raise FirthError(
                f"{path} holds {len(found)} files *{name}; expected one of ELMo's, beside one "
                f"*{WEIGHTS if name == OPTIONS else OPTIONS}"
            )
    return options[0], weights[0]


def read_elmo(path: Path) -> tuple[dict, tuple[str, ...], dict, str]:
    """(spec, heads, {parameter path: float32 array}, text of the options) of a folder.

    Raises FirthError naming the file and the key that is missing or does not fit.
    """
    options_file, weights_file = find_elmo(path)
    options = read_json(options_file)
    spec = _read_options(options, options_file)
    arrays = _read_arrays(weights_file)
    heads = (HEAD,) if "softmax/W" in arrays else ()
    if heads:
        spec["vocab_size"] = len(arrays["softmax/W"])
    table = names(spec, heads)
    expected = {name: shape for name, _, shape in table}
    if missing := [name for name in expected if name not in arrays]:
        raise FirthError(f"{weights_file} lacks {_listed(missing)}, which {options_file} asks for")
    if surplus := sorted(arrays.keys() - expected):
        raise FirthError(f"{weights_file} holds {_listed(surplus)}, which {options_file} has not")
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise FirthError(
                f"{weights_file}: {name} is {list(arrays[name].shape)}, but {options_file} asks "
                f"for {list(shape)}"
            )
    flat = {place: _from_published(place, arrays[name], spec) for name, place, _ in table}
    return spec, heads, flat, options_file.read_text(encoding="utf-8")


def write_elmo(folder: Path, spec: dict, heads, params: dict, options: str | None = None):
    """Write options.json and weights.hdf5 into a folder; `options` is the text that they had."""
    import h5py  # late: only this layout needs it

    flat = flatten_dict(params, sep="/")
    base = json.loads(options) if options else {}
    before = _read_options(base, OPTIONS) if options else {}
    if any(before.get(field) != _plain(spec[field]) for field in STATED):
        options = json.dumps(_write_options(spec, heads, base))
    (folder / OPTIONS).write_text(options, encoding="utf-8")
    with h5py.File(folder / WEIGHTS, "w") as file:
        for name, place, shape in names(spec, heads):
            file.create_dataset(name, data=_to_published(place, flat[place], shape))


def names(spec: dict, heads=()) -> list[tuple[str, str, tuple[int, ...]]]:
    """(name in the file, path of the parameter, shape in the file) of every array."""
    found, P, H = sum(spec["filter_counts"]), spec["hidden_size"] // 2, spec["cell_size"]
    E = spec["character_width"]
    rows = [("char_embed", "words/embedding", (spec["characters"] - 1, E))]
    filters = zip(spec["filter_widths"], spec["filter_counts"], strict=True)
    for i, (width, number) in enumerate(filters):
        rows.append((f"CNN/W_cnn_{i}", f"words/filters_{i}_kernel", (1, width, E, number)))
        rows.append((f"CNN/b_cnn_{i}", f"words/filters_{i}_bias", (number,)))
    for i in range(spec["highways"]):
        for part in ("carry", "transform"):
            name, here = f"CNN_high_{i}", f"words/highway_{i}_{part}"
            rows.append((f"{name}/W_{part}", f"{here}/kernel", (found, found)))
            rows.append((f"{name}/b_{part}", f"{here}/bias", (found,)))
    if found != P:
        rows.append(("CNN_proj/W_proj", "words/projection/kernel", (found, P)))
        rows.append(("CNN_proj/b_proj", "words/projection/bias", (P,)))
    for number, direction in enumerate(("forward", "backward")):
        for i in range(spec["num_layers"]):
            name = f"RNN_{number}/RNN/MultiRNNCell/Cell{i}/LSTMCell"
            here = f"{direction}/layer_{i}"
            rows.append((f"{name}/W_0", f"{here}/kernel", (2 * P, 4 * H)))
            rows.append((f"{name}/B", f"{here}/bias", (4 * H,)))
            rows.append((f"{name}/W_P_0", f"{here}/project", (H, P)))
    rows = [(name, f"encoder/{place}", shape) for name, place, shape in rows]
    if HEAD in heads:
        V = spec["vocab_size"]
        rows += [("softmax/W", f"{HEAD}/table", (V, P)), ("softmax/b", f"{HEAD}/bias", (V,))]
    return rows


def _read_options(options: dict, where) -> dict:
    spec = {"family": "elmo"}
    for section in ("lstm", "char_cnn"):
        if not isinstance(options.get(section), dict):
            raise FirthError(
                f"{where}: {section} is missing; expected the options of an ELMo that reads words "
                "by their characters"
            )
    for (section, key), field in FIELDS.items():
        if key not in options[section] and field not in OPTIONAL:
            raise FirthError(f"{where}: {section}.{key} is missing")
        value = options[section].get(key)
        spec[field] = OPTIONAL[field] if value is None and field in OPTIONAL else value
    width, filters = options["lstm"].get("projection_dim"), options["char_cnn"].get("filters")
    embedding = options["char_cnn"].get("embedding")
    if type(width) is not int or not isinstance(embedding, dict):
        raise FirthError(f"{where}: expected lstm.projection_dim and char_cnn.embedding.dim")
    good = isinstance(filters, list) and filters
    if not good or not all(isinstance(pair, list) and len(pair) == 2 for pair in filters):
        raise FirthError(f"{where}: char_cnn.filters={filters!r}, expected [[width, number], ...]")
    widths, counts = map(list, zip(*filters, strict=True))
    spec |= dict(hidden_size=2 * width, character_width=embedding.get("dim"))
    spec |= dict(filter_widths=widths, filter_counts=counts)
    spec["vocab_size"] = options.get("n_tokens_vocab", 1)
    if spec["characters"] == 261:
        raise FirthError(
            f"{where}: char_cnn.n_characters=261 is that of a model in training; say 262, with the "
            "id of padding, for a trained one"
        )
    return complete_spec(spec, where)


def _write_options(spec: dict, heads, base: dict) -> dict:
    lstm, cnn = dict(base.get("lstm", {})), dict(base.get("char_cnn", {}))
    sections = {"lstm": lstm, "char_cnn": cnn}
    for (section, key), field in FIELDS.items():
        sections[section][key] = spec[field]
    lstm["projection_dim"] = spec["hidden_size"] // 2
    cnn["embedding"] = {"dim": spec["character_width"]}
    pairs = zip(spec["filter_widths"], spec["filter_counts"], strict=True)
    cnn["filters"] = [list(pair) for pair in pairs]
    more = {"n_tokens_vocab": spec["vocab_size"]} if HEAD in heads else {}
    return base | {"bidirectional": True} | sections | more


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """{name: float32 array} of an HDF5 file."""
    try:
        import h5py  # late: only this layout needs it
    except ImportError:
        raise FirthError(f"{path}: reading it needs h5py: pip install h5py") from None
    arrays = {}

    def read(group, prefix: str):
        for key in group:
            name = f"{prefix}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                raise FirthError(f"{path}: {name} is a link to elsewhere; expected an array")
            if isinstance(node := group[key], h5py.Group):
                read(node, f"{name}/")
            elif node.dtype != np.float32 or node.external or node.is_virtual:
                raise FirthError(f"{path}: {name} is {node.dtype}; expected float32 in this file")
            else:
                arrays[name] = node[...]

    try:
        with h5py.File(path, "r") as file:
            read(file, "")
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        raise FirthError(
            f"{path} is truncated, damaged or not an HDF5 file ({error}); copy it again"
        ) from None
    return arrays


def _from_published(place: str, array: np.ndarray, spec: dict) -> np.ndarray:
    """A parameter: with the row of no character, and with axes of gates."""
    if place == "encoder/words/embedding":
        return np.concatenate([np.zeros_like(array[:1]), array])
    if array.ndim == 4:  # a filter over one row of characters
        return array[0]
    if "/layer_" in place and not place.endswith("project"):
        return array.reshape(*array.shape[:-1], 4, spec["cell_size"])
    return array


def _to_published(place: str, array: np.ndarray, shape) -> np.ndarray:
    array = array[1:] if place == "encoder/words/embedding" else array
    return np.ascontiguousarray(array, np.float32).reshape(shape)


def _plain(value):
    """A value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def _listed(some) -> str:
    more = f", ... ({len(some) - 8} more)" if len(some) > 8 else ""
    return ", ".join(some[:8]) + more
