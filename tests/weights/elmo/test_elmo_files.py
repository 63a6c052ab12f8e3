"""ELMo's released layout: a fixture of the released code with its vectors, round trips, errors."""

import json
import shutil

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from helpers.elmo import made

from firth.errors import FirthError
from firth.weights.elmo.exchange import write_elmo
from firth.weights.read import read_model
from firth.weights.write import write_firth, write_published

h5py = pytest.importorskip("h5py")


def arrays(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, x: found.update({name: x[...]}) if hasattr(x, "dtype") else 0)
    return found


@pytest.fixture
def released(shared_data, tmp_path):
    """A copy of the fixture's model: its options and weights."""
    folder = shared_data("elmo_fixture/model")
    for name in ("options.json", "lm_weights.hdf5"):
        shutil.copyfile(folder / name, tmp_path / name)
    return tmp_path


def test_the_released_arrays_come_back_byte_for_byte(released, tmp_path):
    saved = read_model(released)
    assert saved.layout == "published" and not saved.heads
    write_firth(tmp_path / "firth", saved)
    again = read_model(tmp_path / "firth")
    assert again.layout == "firth"
    for out, model in (("out", saved), ("again", again)):
        write_published(tmp_path / out, model)
        before, after = (
            arrays(released / "lm_weights.hdf5"),
            arrays(tmp_path / out / "weights.hdf5"),
        )
        assert list(before) == list(after)
        for name, array in before.items():
            assert array.dtype == after[name].dtype and array.tobytes() == after[name].tobytes()
        text = (released / "options.json").read_text()
        assert (tmp_path / out / "options.json").read_text() == text


def test_a_model_of_ones_own_with_its_softmax_comes_back(tmp_path):
    model, params = made(("bilm",), characters=262)
    params["encoder"]["words"]["embedding"][0] = 0
    spec = {"family": "elmo"} | {
        name: getattr(model.encoder.config, name)
        for name in ("vocab_size", "hidden_size", "cell_size", "num_layers", "characters",
                     "max_characters", "character_width", "filter_widths", "filter_counts",
                     "activation", "highways", "skip_connections", "cell_clip", "projection_clip")
    }  # fmt: skip
    tmp_path.joinpath("m").mkdir()
    write_elmo(tmp_path / "m", spec, ("bilm",), params)
    saved = read_model(tmp_path / "m")
    assert saved.heads == ("bilm",) and saved.spec["vocab_size"] == 11
    own, theirs = flatten_dict(params), flatten_dict(saved.params)
    assert own.keys() == theirs.keys()
    for name in own:
        np.testing.assert_array_equal(own[name], theirs[name])
    config = saved.model().encoder.config
    assert config.cell_clip == 0.4 and config.filters == ((1, 4), (3, 6))
    write_published(tmp_path / "out", saved)
    assert sorted(arrays(tmp_path / "out" / "weights.hdf5")) == sorted(
        arrays(tmp_path / "m" / "weights.hdf5")
    )


def change_options(folder, section, **values):
    options = json.loads((folder / "options.json").read_text())
    for key, value in values.items():
        if value is None:
            del options[section][key]
        else:
            options[section][key] = value
    (folder / "options.json").write_text(json.dumps(options))


def change_weights(folder, name, array):
    with h5py.File(folder / "lm_weights.hdf5", "r+") as file:
        del file[name]
        if array is not None:
            file[name] = array


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda d: change_options(d, "lstm", dim=32),
            r"lm_weights.hdf5: RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0 is \[32, 256\], but "
            r".*options.json asks for \[32, 128\]",
        ),
        (lambda d: change_options(d, "lstm", n_layers=3), "lacks RNN_0/.*Cell2/LSTMCell/W_0"),
        (lambda d: change_options(d, "lstm", n_layers=1), "holds RNN_0/.*Cell1/.*has not"),
        (lambda d: change_options(d, "char_cnn", n_highway=1), "holds CNN_high_1/W_carry"),
        (lambda d: change_options(d, "lstm", dim=None), "options.json: lstm.dim is missing"),
        (lambda d: change_options(d, "char_cnn", n_characters=261), "say 262"),
        (lambda d: change_options(d, "char_cnn", n_characters=263), r"char_embed is \[261, 4\]"),
        (lambda d: change_options(d, "char_cnn", filters=[1]), r"char_cnn.filters=\[1\], expected"),
        (lambda d: change_options(d, "char_cnn", embedding=3), "expected lstm.projection_dim"),
        (lambda d: change_options(d, "lstm", dim="64"), "model.cell_size='64', expected"),
        (lambda d: change_weights(d, "char_embed", None), "lm_weights.hdf5 lacks char_embed"),
        (lambda d: change_weights(d, "char_embed", np.zeros(3, int)), "char_embed is int64"),
        (
            lambda d: change_weights(d, "char_embed", h5py.ExternalLink("other.hdf5", "/x")),
            "char_embed is a link to elsewhere",
        ),
        (
            lambda d: (d / "lm_weights.hdf5").write_bytes(b"\x89HDF"),
            "lm_weights.hdf5 is truncated, damaged or not an HDF5 file",
        ),
        (lambda d: (d / "lm_weights.hdf5").unlink(), r"holds 0 files \*weights.hdf5"),
        (lambda d: (d / "options.json").write_text("{}"), "options.json: lstm is missing"),
    ],
)  # fmt: skip
def test_errors_say_what_does_not_fit(released, change, message):
    change(released)
    with pytest.raises(FirthError, match=message):
        read_model(released)
