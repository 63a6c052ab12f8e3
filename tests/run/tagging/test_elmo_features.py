"""ELMo's frozen vectors in a tagger: the released code's, one a word, from one empty state each."""

import hashlib
import json

import jax
import numpy as np
import pytest
from helpers.elmo import made, write_released

import firth
from firth import recipe
from firth.cli import main
from firth.data.tagging.files import read_sentences
from firth.errors import FirthError
from firth.models.elmo import words
from firth.run import experiment
from firth.run.tagging import whole_words
from firth.run.tagging.features import Features
from firth.training.partition import create_mesh
from firth.weights.read import read_model

h5py = pytest.importorskip("h5py")
LINES = ["the cat sat on the mat", "naïve", "a  the\tcat " + "x" * 70, "the end of it all . " * 3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small ELMo in the released layout, 10 wide, words of 50 places."""
    return write_released(tmp_path_factory.mktemp("elmo"))


def of_lines(path, lines):
    """Sentences of a file of words, tagged Y where they are short."""
    tagged = (((w, "XY"[len(w) < 4]) for w in line.split()) for line in lines)
    path.write_text("\n\n".join("\n".join(map(" ".join, words)) for words in tagged))
    return read_sentences(path)


def arguments(folder, path, name="layers=mix", **changes):
    fields = {"data.train": path, "data.dev": path, "mesh.data": 1, "batch_size": 4}
    fields |= {"eval.batch_size": 4, "data.length": 64} | changes
    return f"tagger.py:tiny,features={folder},{name}", fields


def built(folder, path, *args, **changes):
    name, fields = arguments(folder, str(path), *args, **changes)
    config = recipe.with_fields(recipe.read_recipe(name), fields)
    return experiment.build(config, create_mesh(config.mesh, jax.devices()[:1]))


def trained(folder, path, workdir, name="layers=mix", **changes):
    """The exit status of `firth train`."""
    name, fields = arguments(folder, path, name, **changes)
    fields |= {"mesh.data": -1, "batch_size": 8, "eval.batch_size": 8}  # of 8 devices
    fields |= {"curves": False, "progress": False}
    return main(
        ["train", f"--config={name}", f"--workdir={workdir}"]
        + [f"--config.{field}={value}" for field, value in fields.items()]
    )


def every(vectors):
    return vectors[np.arange(vectors.shape[0])]


def test_the_tagger_reads_the_vectors_of_the_released_code(shared_data, tmp_path):
    """Its first batch begins in an empty state, as here every sentence does."""
    data = shared_data("elmo_fixture/model")
    texts = [row[0] for row in json.loads((data / "lm_embeddings_sentences.json").read_text())]
    golden, own = [], firth.load(data)
    for row in range(len(texts)):
        with h5py.File(data / f"lm_embeddings_{row}.hdf5") as file:
            golden.append(np.concatenate(file["0"][...], -1))
    sentences = of_lines(tmp_path / "a.bio", texts)
    assert sentences.split(sentences.words) == [text.split() for text in texts]
    run = built(data, tmp_path / "a.bio")
    assert (run.spec["feature_size"], run.spec["feature_mix"]) == (32, 3)
    seen = set()
    for batch in run.heldout["dev"]():
        assert batch["features"].dtype == np.float32
        for row in np.flatnonzero(batch["weight"]):
            number = int(batch["example"][row])
            found = batch["features"][row][batch["word_mask"][row]].swapaxes(0, 1)
            np.testing.assert_allclose(found[2], golden[number], rtol=0, atol=1e-5)
            hidden = own([texts[number]]).hidden[:, 0]
            np.testing.assert_allclose(found, hidden, rtol=0, atol=1e-5)
            seen.add(number)
    assert seen == {0, 1, 2}


def test_layers_are_those_of_the_encoder_and_are_kept_once(folder, tmp_path, monkeypatch):
    sentences, kept = of_lines(tmp_path / "a.bio", LINES), tmp_path / "kept"
    encoder = firth.load(folder)
    hidden = np.concatenate([encoder([line]).hidden[:, 0] for line in LINES], 1)
    mixed = Features(str(folder), "mix")
    found = mixed.kept(kept, sentences)
    assert (mixed.size, mixed.mix, found.dtype) == (10, 3, np.float32)
    np.testing.assert_allclose(every(found), hidden.swapaxes(0, 1), rtol=1e-5, atol=1e-5)
    assert len(list(kept.glob("*.npy"))) == 3
    monkeypatch.setattr(Features, "_compute", None)
    for name, layer in (("embeddings", 0), ("1", 1), ("2", 2), ("last", 2)):
        found = every(Features(str(folder), name).kept(kept, sentences))
        np.testing.assert_allclose(found, hidden[layer], rtol=1e-5, atol=1e-5)


def test_a_sentence_does_not_see_the_others_and_a_word_is_read_once(folder, tmp_path, monkeypatch):
    read, whole = [], words.word_batches
    spy = lambda types, config: read.extend(types) or whole(types, config)  # noqa: E731
    monkeypatch.setattr(whole_words, "word_batches", spy)
    features = Features(str(folder), "mix")
    together = every(features(of_lines(tmp_path / "a.bio", LINES)))
    assert len(read) == len(set(read)) == len(set(" ".join(LINES).split()))
    alone = [every(features(of_lines(tmp_path / "b.bio", [line]))) for line in LINES]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-5, atol=1e-5)
    turned = every(features(of_lines(tmp_path / "c.bio", LINES[::-1])))
    np.testing.assert_allclose(turned, np.concatenate(alone[::-1]), rtol=1e-5, atol=1e-5)


def test_many_sentences_come_each_to_its_own_words(folder, tmp_path):
    """More than a batch of sentences, and more than a batch of words."""
    rng = np.random.default_rng(0)
    known = [f"w{number}" for number in range(200)]
    lines = [" ".join(rng.choice(known, rng.integers(1, 20))) for _ in range(70)]
    found = every(Features(str(folder), "2")(of_lines(tmp_path / "a.bio", lines)))
    encoder = firth.load(folder)
    expected = np.concatenate([encoder([line]).hidden[2, 0] for line in lines])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_long_word_is_cut_and_one_with_a_space_is_one_word(folder, tmp_path):
    """The released code keeps the first 48 bytes of a word."""
    features = Features(str(folder), "mix")
    long = every(features(of_lines(tmp_path / "a.bio", ["see é" + "y" * 90 + " ."])))
    same = every(features(of_lines(tmp_path / "b.bio", ["see é" + "y" * 46 + " ."])))
    less = every(features(of_lines(tmp_path / "c.bio", ["see é" + "y" * 45 + " ."])))
    np.testing.assert_array_equal(long, same)
    assert np.abs(long - less).max() > 1e-4
    (tmp_path / "d.tsv").write_text("10 000\tX\nmen\tX\n")
    found = every(features(read_sentences(tmp_path / "d.tsv")))
    own = made(max_characters=50)[0].encoder.config
    assert found.shape == (2, 3, own.hidden_size)
    other = every(features(of_lines(tmp_path / "e.bio", ["10 000 men"])))
    assert np.abs(found[1, 1:] - other[2, 1:]).max() > 1e-4
    np.testing.assert_allclose(found[1, 0], other[2, 0], rtol=1e-5, atol=1e-5)


def test_training_leaves_the_weights_alone_and_learns_the_mix(folder, tmp_path, capsys):
    of_lines(tmp_path / "a.bio", LINES)
    sums = {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()}
    workdir, path = tmp_path / "run", tmp_path / "a.bio"
    assert trained(folder, path, workdir, epochs=2.0) == 0
    assert {f: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()} == sums
    assert len(list((workdir / "features").glob("*.npy"))) == 3
    params = read_model(workdir).params["encoder"]
    assert set(params) == {"characters", "mix", "stack", "word"}  # nothing of the ELMo
    assert np.abs(params["mix"]["scores"]).max() > 0 and params["mix"]["scale"] != 1
    assert main(["evaluate", "--model", str(workdir), "--data", str(path)]) == 0
    (tmp_path / "new.txt").write_text("\n".join(LINES))
    tagged = str(tmp_path / "new.jsonl")
    new = str(tmp_path / "new.txt")
    assert main(["predict", "--model", str(workdir), "--input", new, "--output", tagged]) == 0
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == len(LINES)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("layers=3", "a X\nb Y\n", "feature_layers=3: {} has 2 layers; expected 1 to 2, or 0"),
        ("layers=sum_last_four", "a X\nb Y\n", "has 2 layers; expected four or more"),
        ("context=document", "a X\nb Y\n", "{} is an ELMo, which reads each sentence by itself"),
        ("layers=mix", "\n\n\n", "no sentences; expected a word a line"),
        ("layers=mix", "a X\n\u200b\u3000 X Y\n", ":2: 3 columns"),
    ],
)
def test_what_cannot_be_exits_2(folder, tmp_path, capsys, name, text, message):
    (tmp_path / "a.bio").write_text(text)
    assert trained(folder, tmp_path / "a.bio", tmp_path / "run", name) == 2
    assert message.format(folder) in capsys.readouterr().err


def test_characters_of_its_own_are_refused(folder):
    model = made(characters=30)[0]
    with pytest.raises(FirthError, match="elmo has 30 characters, not the 262"):
        whole_words.WholeWords(model, "elmo")
