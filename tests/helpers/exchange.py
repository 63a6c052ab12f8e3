"""Convert published models, change their files and compare them."""

import json

import numpy as np
import safetensors.numpy

from firth.commands import convert


def round_trip(source, folder):
    """Convert published to Firth and back with the command; returns the last directory."""
    assert convert.main(["--from", str(source), "--to", str(folder / "firth")]) == 0
    assert convert.main(["--from", str(folder / "firth"), "--to", str(folder / "back")]) == 0
    return folder / "back"


def assert_same_files(source, back):
    for file in source.iterdir():
        if file.suffix in (".json", ".safetensors", ".txt"):
            assert (back / file.name).read_bytes() == file.read_bytes(), file.name


def contents(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def rewrite(directory, change, metadata=None):
    """Apply a function of {name: array} to a directory's model.safetensors."""
    file = directory / "model.safetensors"
    tensors = change(safetensors.numpy.load_file(file))
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    safetensors.numpy.save_file(tensors, file, metadata or {"format": "pt"})


def edit_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
