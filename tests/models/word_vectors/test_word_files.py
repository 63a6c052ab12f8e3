"""Word vectors on disk: Firth's folder, and the formats of word2vec and GloVe by their bytes."""

import json
import struct

import numpy as np
import pytest

from firth.errors import FirthError
from firth.models.word_vectors import files, formats

WORDS = ["the", "vase", "Größe"]
VECTORS = np.array([[1.5, -2.0], [0.1, 3e-9], [-7.25, 1 / 3]], np.float32)


@pytest.mark.parametrize("name", ["a.vec", "a.txt", "a.bin", "a.glove.txt"])
def test_every_format_gives_the_vectors_back(tmp_path, name):
    formats.write(tmp_path / name, WORDS, VECTORS)
    words, vectors = formats.read(tmp_path / name)
    assert words == WORDS and vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, VECTORS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_bytes_are_those_of_the_tools(tmp_path):
    for name in ("a.vec", "a.bin", "a.glove.txt"):
        formats.write(tmp_path / name, WORDS, VECTORS)
    packed = b"".join(
        word.encode() + b" " + struct.pack("<2f", *row) + b"\n"
        for word, row in zip(WORDS, VECTORS.tolist(), strict=True)
    )
    assert (tmp_path / "a.bin").read_bytes() == b"3 2\n" + packed
    glove = (tmp_path / "a.glove.txt").read_text()
    assert glove.splitlines()[0] == "the 1.5 -2"
    assert (tmp_path / "a.vec").read_text() == "3 2\n" + glove


def test_what_other_tools_write_is_read(tmp_path):
    # the C tool ends text lines in a space; other writers have no line end after a binary vector
    (tmp_path / "c.txt").write_bytes(b"2 2\nthe 1.500000 -2.000000 \nvase 0.5 1 \n")
    bare = b"2 2\nthe " + struct.pack("<2f", 1.5, -2) + b"vase " + struct.pack("<2f", 0.5, 1)
    (tmp_path / "bare.bin").write_bytes(bare)
    (tmp_path / "spaces.txt").write_bytes(b"the 1.5 -2 0\n. . . 0.5 1e0 0\n")
    expected = np.array([[1.5, -2], [0.5, 1]], np.float32)
    for name in ("c.txt", "bare.bin"):
        words, vectors = formats.read(tmp_path / name)
        assert words == ["the", "vase"]
        np.testing.assert_array_equal(vectors, expected)
    assert formats.read(tmp_path / "spaces.txt")[0] == ["the", ". . ."]


BINARY = b"3 2\n" + b"".join(b"w%d " % n + struct.pack("<2f", n, 1) + b"\n" for n in range(3))
BAD = {
    "empty.txt": (b"", "holds no word vectors"),
    "header.vec": (b"3 2\n", "holds no word vectors"),
    "short.txt": (b"the 1 2\nvase 1\n", r"short.txt:2: expected a word and 2 numbers"),
    "long.vec": (b"2 1\nthe 1\nvase x\n", r"long.vec:3: expected a word and 1 numbers"),
    "cut.vec": (b"3 1\nthe 1\nvase 2\n", "announces 3 words, and it holds 2"),
    "alone.txt": (b"the\nvase\n", r"alone.txt:1: expected a word and 1 numbers"),
    "nan.txt": (b"the 1\nvase nan\n", "the vector of 'vase', word 2, has a number that is not f"),
    "twice.txt": (b"the 1\nvase 2\nthe 3\n", "'the' stands there twice, as word 1 and 3"),
    "latin.txt": (b"the 1\nGr\xf6sse 2\n", r"latin.txt:2: the word is not UTF-8"),
    "cut.bin": (BINARY[:-6], "cut off or damaged at word 3 of 3"),
    "half.bin": (BINARY[:16], "is cut off: 3 words of 2 dimensions take more than"),
    "torch.bin": (b"\x80\x02}q\x00.", "binary one begins with a line of two numbers"),
    "latin.bin": (BINARY.replace(b"w1", b"\xf61"), "word 2 of 3 is not UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named(tmp_path, name):
    data, said = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FirthError, match=said):
        formats.read(tmp_path / name)


def test_a_word_with_a_space_is_not_written(tmp_path):
    for bad in (". .", "", "a\n"):
        with pytest.raises(FirthError, match="has white space"):
            formats.write(tmp_path / "a.vec", ["the", bad], VECTORS[:2])
    assert not list(tmp_path.iterdir())


def test_a_folder_gives_them_back_and_names_damage(tmp_path):
    words = files.WordVectors(np.array([4, 2, 9], np.int32), VECTORS, np.array([8, 3, 1]))
    files.save(words, tmp_path, family="glove", window=3)
    assert files.is_word_vectors(tmp_path)
    found, spec = files.load(tmp_path)
    for one, other in zip(found, words, strict=True):
        np.testing.assert_array_equal(one, other)
    assert spec == {"family": "glove", "window": 3, "words": 3, "dim": 2}
    data = bytearray((tmp_path / files.TABLES).read_bytes())
    data[-1] ^= 1
    (tmp_path / files.TABLES).write_bytes(data)
    with pytest.raises(FirthError, match=r"word_vectors\.safetensors is damaged"):
        files.load(tmp_path)
    whole = json.loads((tmp_path / files.NAME).read_text())
    (tmp_path / files.NAME).write_text(json.dumps(whole | {"model": {"family": "bert"}}))
    with pytest.raises(FirthError, match="does not describe word vectors"):
        files.load(tmp_path)
