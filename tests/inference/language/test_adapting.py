"""Dynamic evaluation and the neural cache: against torch and numpy, and by the command."""

import json

import jax
import numpy as np
import pytest

import firth
from firth import cli
from firth.data.corpus.stream import Stream
from firth.errors import FirthError
from firth.inference.language import dynamic, neural_cache
from firth.inference.language.dynamic import Dynamic
from firth.inference.language.neural_cache import NeuralCache
from firth.inference.score import score_stream
from firth.models.model import create
from firth.tokenizers.load import train_tokenizer
from firth.weights.read import Saved
from firth.weights.write import write_firth

TEXT = "the cat sat on the mat\nthe dog sat on the cat\na dog ran\nthe cat ran to a dog\n"
D, LENGTH = 8, 5


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Elman's network with random weights in `rnn`, its words in `tok` and the text in `store`."""
    folder = tmp_path_factory.mktemp("adapting")
    (folder / "text.txt").write_text(TEXT)
    words = train_tokenizer("word", TEXT.splitlines(), None)
    words.save(folder / "tok")
    paths = [f"--input={folder}/text.txt", f"--tokenizer={folder}/tok", f"--output={folder}/store"]
    assert cli.main(["prepare", *paths, "--sentences=line"]) == 0
    spec = dict(family="rnn", vocab_size=words.vocab_size, hidden_size=D, init_stddev=0.9)
    params = create(spec, ("lm",)).init(jax.random.key(3), np.zeros((1, 4), int))["params"]
    params = jax.tree.map(np.asarray, jax.device_get(params))
    saved = Saved(
        spec, ("lm",), 2, None, False, params, folder, "firth", tokenizer_path=folder / "tok"
    )
    write_firth(folder / "rnn", saved)
    return folder


@pytest.fixture(scope="module")
def encoder(place):
    return firth.load(place / "rnn")


@pytest.fixture(scope="module")
def tokens(encoder):
    return np.random.default_rng(0).integers(1, encoder.tokenizer.vocab_size, 33)


class Torch:
    """The same network in torch, float64; a segment at a time, its state without gradient."""

    def __init__(self, torch, encoder):
        self.torch, p = torch, jax.device_get(encoder.params)
        own = p["encoder"]["stack"]["layer_0"]["recurrent"][:, 0], p["lm"]["softmax"]
        self.params = [
            torch.tensor(array, dtype=torch.float64, requires_grad=True)
            for array in (p["encoder"]["word"]["embedding"], *own)
        ]
        self.end = encoder.tokenizer.end_id

    def segments(self, tokens, learn):
        """log P of each token; `learn(gradients of the segment's mean, tokens)` after each one."""
        table, recurrent, softmax = self.params
        text, state, found = [self.end, *tokens.tolist()], self.torch.zeros(D).double(), []
        for begin in range(0, len(tokens), LENGTH):
            log_probs = []
            for word, following in zip(text[begin:-1][:LENGTH], text[begin + 1 :], strict=False):
                state = (table[word] + state @ recurrent).sigmoid()
                log_probs.append((state @ softmax).log_softmax(0)[following])
            loss = -self.torch.stack(log_probs).mean()
            gradients = self.torch.autograd.grad(loss, self.params)
            found += [float(value) for value in log_probs]
            state = state.detach()
            with self.torch.no_grad():
                learn(gradients, len(log_probs))
        return np.array(found)


def test_a_segment_is_learned_from_after_it_is_scored(torch, encoder, tokens):
    theirs = Torch(torch, encoder)

    def learn(gradients, count):
        for p, g in zip(theirs.params, gradients, strict=True):
            p -= 0.1 * count * g  # of the sum

    before = jax.device_get(encoder.params)
    found = dynamic.score(encoder, tokens, Dynamic(0.1, length=LENGTH))
    np.testing.assert_allclose(found, theirs.segments(tokens, learn), atol=2e-5)
    static = score_stream(encoder, tokens, LENGTH)
    np.testing.assert_allclose(found[:LENGTH], static[:LENGTH], atol=1e-6)
    assert abs(found - static)[LENGTH:].min() > 1e-4
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(encoder.params))
    assert dynamic.score(encoder, tokens[:0], Dynamic(0.1)).shape == (0,)


def test_gradients_are_divided_by_those_of_the_training_text(torch, encoder, tokens):
    """Krause et al. 2018 as `dynamiceval.py` has it: gradstat, then update after each segment."""
    text = np.random.default_rng(1).integers(1, encoder.tokenizer.vocab_size, 30)
    theirs, squares, batches = Torch(torch, encoder), [0, 0, 0], 0

    def gather(gradients, count):
        nonlocal batches
        batches += 1
        for i, g in enumerate(gradients):
            squares[i] = squares[i] + g**2

    theirs.segments(text, gather)
    roots = [(total / batches).sqrt() for total in squares]
    mean = sum(root.mean() for root in roots) / len(roots)
    rate, decay, epsilon = 0.02, 0.3, 0.001
    first = [p.detach().clone() for p in theirs.params]
    clipped = [bool((root / mean > 1 / decay).any()) for root in roots]
    assert any(clipped)  # so that the bound matters

    def learn(gradients, count):
        for p, g, p0, root in zip(theirs.params, gradients, first, roots, strict=True):
            back = (root / mean).clamp(max=1 / decay)
            p += decay * back * (p0 - p) - rate * g / (root + epsilon)

    settings = Dynamic(rate, length=LENGTH, decay=decay, epsilon=epsilon, train="given")
    stream = Stream(text, np.zeros(len(text), bool))
    found = dynamic.score(encoder, tokens, settings, stream)
    np.testing.assert_allclose(found, theirs.segments(tokens, learn), atol=1e-4)


@pytest.mark.parametrize("size", [4, 9, 100])
@pytest.mark.parametrize("window", [LENGTH, 64])
def test_a_neural_cache_weighs_places_by_their_states(encoder, size, window):
    tokens = np.random.default_rng(2).integers(1, 6, 31)
    found = NeuralCache(size).score(encoder, tokens, window)
    text = np.array([[encoder.tokenizer.end_id, *tokens[:-1]]])
    states = encoder(tokens=text).hidden[-1][0].astype(np.float64)
    assert found.shape == (len(neural_cache.THETAS), len(tokens))
    for row, theta in zip(found, neural_cache.THETAS, strict=True):
        for t, token in enumerate(tokens):
            begin = max(t - size, 0)
            weights = np.exp(theta * (states[begin:t] @ states[t]))
            same = weights[tokens[begin:t] == token].sum()
            expected = same / weights.sum() if t else 0
            np.testing.assert_allclose(np.exp(row[t]), expected, rtol=1e-4, atol=1e-7)
    one = NeuralCache(size, theta=0.3).score(encoder, tokens, window)
    np.testing.assert_allclose(one, found[[neural_cache.THETAS.index(0.3)]], atol=1e-6)


def evaluated(place, capsys, *arguments):
    capsys.readouterr()
    argv = ["evaluate", f"--models={place}/rnn", f"--data={place}/store", "--json", *arguments]
    assert cli.main(argv) == 0
    return {" + ".join(row["models"]): row for row in json.loads(capsys.readouterr().out)}


def test_the_command_mixes_them(place, capsys):
    tuned = [f"--tune={place}/store", "--window=8"]
    rows = evaluated(place, capsys, "--dynamic=0.5,length=4", "--neural-cache=20", *tuned)
    assert list(rows) == [
        "rnn",
        "rnn dynamic",
        "rnn + rnn dynamic",
        "rnn + rnn neural cache",
        "rnn dynamic + rnn neural cache",
        "rnn + rnn dynamic + rnn neural cache",
    ]
    loss = {name: row["measures"]["lm_loss"] for name, row in rows.items()}
    assert loss["rnn dynamic"] < loss["rnn"]
    of_thetas = [
        evaluated(place, capsys, f"--neural-cache=20,theta={theta}", *tuned)
        for theta in neural_cache.THETAS
    ]
    best = min(found["rnn + rnn neural cache"]["measures"]["lm_loss"] for found in of_thetas)
    assert loss["rnn + rnn neural cache"] == pytest.approx(best, abs=1e-6)
    rows = evaluated(place, capsys, f"--dynamic=0.01,train={place}/store,decay=0.1")
    assert list(rows) == ["rnn", "rnn dynamic", "rnn + rnn dynamic"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dynamic=fast", "--dynamic argument rate='fast' is not a float"),
        ("--dynamic=0.1,zeal=2", "this --dynamic has no argument 'zeal'"),
        ("--dynamic=0", "dynamic evaluation: rate=0"),
        ("--dynamic=0.1,decay=0.1", "decay=0.1 needs train=STORE"),
        ("--dynamic=0.1,train=gone", "gone is not a corpus store"),
        ("--neural-cache=20", "--neural-cache 20: give theta, as in 20,theta=0.3, or --tune STORE"),
        ("--neural-cache=0,theta=1", "neural cache: size=0"),
    ],
)
def test_bad_settings(place, arguments, message, capsys):
    argv = ["evaluate", f"--models={place}/rnn", f"--data={place}/store", arguments]
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_model_without_memory_cannot_adapt(place, capsys):
    fields = [f"--config.data.store={place}/store", "--config.model.smoothing=add_k"]
    assert cli.main(["train", "--config=ngram.py:1", f"--workdir={place}/n1", *fields]) == 0
    for option in ("--dynamic=0.1", "--neural-cache=5,theta=1"):
        argv = ["evaluate", f"--models={place}/n1", f"--data={place}/store", option]
        assert cli.main(argv) == 2
        name = option.partition("=")[0]
        assert f"{name} needs a model with memory" in capsys.readouterr().err
    with pytest.raises(FirthError, match="length=0"):
        Dynamic(0.1, length=0)


def test_a_dtype_reaches_the_networks_of_a_mixture(place, capsys):
    losses = []
    for dtype in ("float32", "bfloat16"):
        argv = ["evaluate", f"--models={place}/rnn", f"--data={place}/store", "--json"]
        assert cli.main([*argv, f"--dtype={dtype}"]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        losses.append(row["measures"]["lm_loss"])
    assert 1e-6 < abs(losses[0] - losses[1]) < 0.01
