"""`encoder.encode`, and the formats of `firth represent`: each holds the same vectors."""

import json

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference import vector_files

TEXTS = ["the cat sat on the mat .", ("the dog ran", "cats"), "fish", "", "the food"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(directory, encoder, a file of the texts)."""
    folder = tmp_path_factory.mktemp("made")
    make_bert(folder / "m", "BertForPreTraining", num_hidden_layers=2)
    add_tokenizer(folder / "m")
    lines = [text if isinstance(text, str) else "\t".join(text) for text in TEXTS]
    (folder / "texts.txt").write_text("\n".join(lines) + "\n")
    return folder / "m", firth.load(folder / "m"), folder / "texts.txt"


def represent(made, output, *options):
    """`firth represent` of the texts; its exit status."""
    argv = ["--model", made[0], "--input", made[2], "--output", output, *options]
    return cli.main(["represent", *map(str, argv)])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("layer", "pool"), [(-1, "mean"), (1, "cls")])
def test_encode_gives_the_vectors_of_represent(made, tmp_path, layer, pool, normalize):
    found = made[1].encode(TEXTS, layer=layer, pool=pool, normalize=normalize, batch_size=2)
    assert found.dtype == np.float32 and found.shape == (len(TEXTS), 36)
    expected = []
    for text in TEXTS:  # alone, and pooled by numpy
        hidden = made[1]([text]).hidden[layer, 0]
        vector = hidden.mean(0) if pool == "mean" else hidden[0]
        expected.append(vector / np.linalg.norm(vector) if normalize else vector)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    options = [f"--layers={layer}", f"--pool={pool}", *["--normalize"] * normalize]
    assert represent(made, tmp_path / "v.npy", *options) == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), found, atol=1e-5)


def test_every_format_holds_the_same(made, tmp_path, monkeypatch):
    from pyarrow import parquet

    monkeypatch.setattr(vector_files, "ROWS", 2)  # several groups
    for ending in vector_files.FORMATS:
        assert represent(made, tmp_path / f"v{ending}") == 0
    expected = np.load(tmp_path / "v.npz")["vectors"]
    assert expected.shape == (len(TEXTS), 36)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    lines = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == [t if isinstance(t, str) else [*t] for t in TEXTS]
    np.testing.assert_allclose([line["vector"] for line in lines], expected, rtol=1e-6)
    table = parquet.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["text"] == [t if isinstance(t, str) else t[0] for t in TEXTS]
    assert table["text_pair"] == [None if isinstance(t, str) else t[1] for t in TEXTS]
    np.testing.assert_array_equal(np.array(table["vector"], np.float32), expected)
    for ending in (".npz", ".npy", ".jsonl"):
        found, _ = vector_files.read_vectors(tmp_path / f"v{ending}")
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert represent(made, tmp_path / "l.npy", "--layers=0,2") == 0
    both = np.load(tmp_path / "l.npy")
    assert both.shape == (len(TEXTS), 2, 36)
    np.testing.assert_array_equal(both[:, 1], expected)


def test_every_token_as_lines(made, tmp_path):
    assert represent(made, tmp_path / "t.jsonl", "--pool=none") == 0
    first = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])
    out = made[1](TEXTS[:1])
    assert first["tokens"] == out.tokens[0]
    np.testing.assert_allclose(first["vectors"], out.hidden[-1, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("v.txt", (), "v.txt: expected a file that ends in .npz, .npy, .jsonl, .parquet"),
        ("v.npy", ("--pool=none",), "a .npy file holds a vector a text"),
        ("v.parquet", ("--pool=none",), "a .parquet file holds one vector a text"),
        ("v.parquet", ("--layers=0,1",), "a .parquet file holds one vector a text"),
    ],
)
def test_a_format_that_does_not_fit_is_refused(made, tmp_path, capsys, name, options, message):
    assert represent(made, tmp_path / name, *options) == 2
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_a_shape_is_compiled_once_for_an_encoder(made):
    encoder = firth.load(made[0])
    first = encoder.encode(["the cat"])
    (program,) = encoder._programs.values()
    assert (encoder.encode(["the dog"]) != first).any() and program.made + program.read == 1
    assert list(encoder._programs.values()) == [program]
    encoder.encode(["the dog"], pool="cls")
    assert len(encoder._programs) == 2


def test_what_encode_refuses(made):
    for texts, options, message in (
        ("the cat", {}, "expected a list of texts"),
        ([], {}, "expected a list of texts"),
        (["a"], dict(pool="none"), "a vector a token"),
        (["a"], dict(pool="max"), "pool='max': expected one of none, cls, mean"),
        (["a"], dict(layer=3), "no layer 3"),
        (["a"], dict(max_length=99), r"max_length=99 is outside 3 \.\. 40"),
    ):
        with pytest.raises(FirthError, match=message):
            made[1].encode(texts, **options)
