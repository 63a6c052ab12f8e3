"""Programs of an encoder: compiled once, kept on disk, and only what is asked for."""

import itertools
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from jax.experimental.compilation_cache import compilation_cache

import firth
from firth.data.tagging.files import read_sentences
from firth.inference.execution import kept, program
from firth.inference.execution.ahead import computed
from firth.inference.tagging.tagger import Tagger
from firth.inference.vectors import Pooling, _selector
from firth.models.model import create
from firth.tokenizers.load import train_tokenizer
from firth.weights.read import Saved
from firth.weights.write import write_firth

TEXTS = ["the cat sat", "dogs ran and ate fish on the mat ."]
AGAIN = """
import sys
import numpy as np
import firth

encoder = firth.load(sys.argv[1])
np.save(sys.argv[2], encoder.encode(["the cat sat", "dogs ran and ate fish on the mat ."]))
(one,) = encoder._programs.values()
print(one.made, one.read)
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The folder of programs of this test alone, which JAX's own cache does not replace."""
    monkeypatch.setenv("FIRTH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    set_before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "cache" / "compiled"
    jax.config.update("jax_compilation_cache_dir", set_before)
    compilation_cache.reset_cache()


def encode(model, dtype="float32"):
    """(vectors, programs that were compiled, programs from disk) of an encoder loaded anew."""
    encoder = firth.load(model, dtype=dtype)
    vectors = encoder.encode(TEXTS)
    (one,) = encoder._programs.values()
    return vectors, one.made, one.read


def test_a_second_process_compiles_nothing(model, own_cache, tmp_path):
    def run(name):
        argv = [sys.executable, "-c", AGAIN, str(model), str(tmp_path / name)]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()

    assert run("one.npy") == ["1", "0"] and len(list(own_cache.iterdir())) == 1
    assert run("two.npy") == ["0", "1"]
    np.testing.assert_array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))


def test_a_kept_program_is_for_this_model_and_code(model, own_cache, tmp_path, monkeypatch):
    first, *counts = encode(model)
    assert counts == [1, 0]
    assert encode(model)[1:] == (0, 1)
    other = tmp_path / "other"
    make_bert(other, "BertForPreTraining", num_hidden_layers=2)
    add_tokenizer(other)
    assert encode(other)[1:] == (1, 0)
    assert firth.load(model).encode(TEXTS, pool="cls").shape == first.shape
    assert len(list(own_cache.iterdir())) == 3
    monkeypatch.setattr(program, "_code", lambda: "other sources")
    assert encode(model)[1:] == (1, 0)
    monkeypatch.undo()


def test_what_a_kept_program_expects_to_be_rounded_is_kept_with_it(model, own_cache):
    first, *counts = encode(model, "bfloat16")
    again, *others = encode(model, "bfloat16")
    assert (counts, others) == ([1, 0], [0, 1])
    np.testing.assert_array_equal(again, first)
    assert encode(model)[1:] == (1, 0)


def test_models_of_the_same_shapes_have_programs_of_their_own(own_cache, tmp_path):
    vectors = {}
    for activation in ("gelu", "relu"):
        directory = tmp_path / activation
        make_bert(directory, "BertForPreTraining", hidden_act=activation)
        add_tokenizer(directory)
        vectors[activation], *counts = encode(directory)
        assert counts == [1, 0]
    assert np.abs(vectors["gelu"] - vectors["relu"]).max() > 1e-3


def test_threads_compile_a_shape_once(model):
    encoder = firth.load(model)
    doubled = encoder.program("doubled", lambda: lambda params, x: 2 * x)
    prepared = ((i, (np.full(3, i, np.float32),)) for i in range(6))
    found = [value[0] for _, value in computed(doubled, encoder.params, prepared)]
    assert found == [0, 2, 4, 6, 8, 10] and doubled.made == 1


def test_a_shape_that_is_there_does_not_wait_for_one_that_is_compiled(model):
    encoder, traced, finished = firth.load(model), threading.Event(), threading.Event()

    def function(params, x):
        if len(x) == 2:
            traced.set()
            assert finished.wait(30), "the other shape waits"
        return 2 * x

    doubled = encoder.program("doubled", lambda: function)
    doubled(encoder.params, np.ones(1))
    with ThreadPoolExecutor(1) as pool:
        longer = pool.submit(doubled, encoder.params, np.ones(2))
        assert traced.wait(30)
        assert doubled(encoder.params, np.ones(1)).tolist() == [2]
        finished.set()
        assert longer.result().tolist() == [2, 2]


@pytest.mark.parametrize("damage", ["empty", "short", "another program"])
def test_a_damaged_file_is_replaced(model, own_cache, damage):
    first, *_ = encode(model)
    (path,) = own_cache.iterdir()
    if damage == "another program":
        whole = path.read_bytes()
        path.unlink()
        firth.load(model).encode(TEXTS, pool="cls")
        (other,) = own_cache.iterdir()
        path.write_bytes(whole[: kept.DIGEST] + other.read_bytes()[kept.DIGEST :])
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-9])
    again, *counts = encode(model)
    np.testing.assert_array_equal(again, first)
    assert counts == [1, 0] and encode(model)[1:] == (0, 1)


def test_programs_of_jaxs_cache_are_not_written_once_more(model, own_cache, tmp_path):
    """They come without their functions, and JAX goes on using a folder that is no longer set."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "of jax"))
    compilation_cache.reset_cache()
    firth.load(model).encode(TEXTS)
    jax.config.update("jax_compilation_cache_dir", None)
    first, *_ = encode(model)
    (path,) = own_cache.iterdir()
    path.unlink()
    assert encode(model)[1:] == (1, 0)
    again, *counts = encode(model)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    assert counts == [0, 1]
    np.testing.assert_array_equal(again, first)


def test_a_folder_that_cannot_be_written_does_no_harm(model, own_cache):
    own_cache.parent.mkdir()
    own_cache.write_text("a file where the folder would be")
    assert encode(model)[1:] == encode(model)[1:] == (1, 0)


def test_the_oldest_files_go(model, own_cache, monkeypatch):
    monkeypatch.setattr(kept, "FILES", 2)
    for pool in ("mean", "cls"):
        firth.load(model).encode(TEXTS, pool=pool)
    old = {path.name for path in own_cache.iterdir()}
    firth.load(model).encode(TEXTS, normalize=True)
    assert len(list(own_cache.iterdir())) == 2 and len(old & set(map(str, own_cache.iterdir()))) < 2


def test_a_family_of_ones_own_is_not_kept(model):
    encoder = firth.load(model)
    assert program.identity(encoder.model, encoder.params, "key")

    class Body(type(encoder.model.encoder)):
        pass

    Body.__module__ = "mine"
    other = encoder.model.clone(encoder=Body(encoder.model.encoder.config))
    assert program.identity(other, encoder.params, "key") is None


def test_only_the_layers_that_are_asked_for_are_computed(model):
    encoder = firth.load(model, heads=False)
    batch = np.ones((4, 16), np.int32), np.zeros((4, 16), np.int32), np.ones((4, 16), bool)

    def cost(*layers):
        lowered = jax.jit(_selector(encoder, Pooling(layers))).lower(encoder.params, *batch)
        compiled = lowered.compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes

    (none, _), (one, _), (two, _), (three, least) = (cost(n) for n in range(4))
    assert two - one == pytest.approx(one - none, rel=0.05)
    assert three - two == pytest.approx(one - none, rel=0.05)
    text = jax.jit(_selector(encoder, Pooling((3,)))).lower(encoder.params, *batch)
    assert "f32[4,4,16,36]" not in text.compile().as_text()  # all states, embeddings included
    assert least < cost(0, 1, 2, 3)[1]


def test_taggers_of_one_shape_follow_their_own_labels(own_cache, tmp_path):
    """A CRF's program holds what may follow what, which is of the labels and of no shape."""
    words = train_tokenizer("wordpiece", ["a b c d"], 60)
    words.save(tmp_path / "words")
    spec = dict(family="bert", vocab_size=words.vocab_size, num_layers=1, hidden_size=16)
    spec |= dict(num_heads=2, intermediate_size=24, max_length=40, init_stddev=1.0)
    model = create(spec, ("crf",), 3)
    params = model.init(jax.random.key(0), np.zeros((1, 4), int))["params"]
    params = jax.tree.map(np.asarray, jax.device_get(params))
    (tmp_path / "in.txt").write_text("a b c d\nb a\nd c b a\nc c d\n")
    sentences = read_sentences(tmp_path / "in.txt", tagged=False)
    found = {}
    for labels in (("N", "V", "W"), ("O", "B-X", "I-X"), ("V", "W", "N")):
        folder = tmp_path / labels[0]
        saved = Saved(
            spec,
            ("crf",),
            3,
            labels,
            False,
            params,
            folder,
            "firth",
            tokenizer_path=tmp_path / "words",
        )
        write_firth(folder, saved)
        tags = [tag for row in Tagger(folder)(sentences) for tag in row]
        found[labels[0]] = [labels.index(tag) for tag in tags]
    assert found["V"] == found["N"] != found["O"]
    rows = np.split(found["O"], np.cumsum([4, 2, 4]))
    assert all(row[0] != 2 and (0, 2) not in itertools.pairwise(row.tolist()) for row in rows)
