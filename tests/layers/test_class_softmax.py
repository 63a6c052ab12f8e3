"""The softmax with classes of words, against numpy in double precision and the rule of rnnlm."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import initial, jit

from firth.errors import FirthError
from firth.layers.class_softmax import ClassSoftmaxHead, divide

SIZES, D = (1, 2, 4, 9, 3), 6
V = sum(SIZES)
CONFIG = SimpleNamespace(
    hidden_size=D, vocab_size=V, class_sizes=SIZES, init_range=0.0, truncated=False, init_stddev=1.0
)
CLASS = np.repeat(np.arange(len(SIZES)), SIZES)


def made():
    """(head, params, hidden states [2, 11, D], targets [2, 11], every word once)."""
    head, rng = ClassSoftmaxHead(CONFIG), np.random.default_rng(0)
    x = rng.normal(size=(2, 11, D)).astype(np.float32)
    targets = np.resize(rng.permutation(V), 22).reshape(2, 11)
    return head, initial(head, x, None, scale=1.0), x, targets


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def expected(params, x):
    """log P [..., V] and which words are the likeliest of the likeliest class, word by word."""
    classes, words = (params[name].astype(np.float64) for name in ("classes", "softmax"))
    of_class, found = log_softmax(x @ classes), []
    greedy = np.zeros((*x.shape[:-1], V), bool)
    for c in range(len(SIZES)):
        inside = log_softmax(x @ words[:, c == CLASS])
        found.append(of_class[..., [c]] + inside)
        chosen = of_class[..., [c]] == of_class.max(-1, keepdims=True)
        greedy[..., c == CLASS] = chosen & (inside == inside.max(-1, keepdims=True))
    return np.concatenate(found, -1), greedy


def test_probabilities_are_those_of_classes_and_words_and_sum_to_one():
    head, params, x, targets = made()
    log_probs, greedy = expected(params, x.astype(np.float64))
    got = jit(head.apply)({"params": params}, x, None)
    np.testing.assert_allclose(got, log_probs, atol=1e-5)
    np.testing.assert_allclose(np.exp(np.asarray(got, np.float64)).sum(-1), 1, atol=1e-5)
    losses, right = jit(lambda p: head.apply({"params": p}, x, targets, method="losses"))(params)
    own = np.take_along_axis(log_probs, targets[..., None], -1)[..., 0]
    np.testing.assert_allclose(losses, -own, atol=1e-5)
    hits = np.take_along_axis(greedy, targets[..., None], -1)[..., 0]
    np.testing.assert_array_equal(right, hits)
    best = greedy.argmax(-1)
    _, right = head.apply({"params": params}, x, best, method="losses")
    assert np.asarray(right).all()


def test_gradients_are_those_of_all_words():
    head, params, x, targets = made()
    weights = np.random.default_rng(1).normal(size=targets.shape).astype(np.float32)

    def short(params, x):
        return (head.apply({"params": params}, x, targets, method="losses")[0] * weights).sum()

    def whole(params, x):
        log_probs = head.apply({"params": params}, x, None)
        own = jnp.take_along_axis(log_probs, jnp.asarray(targets)[..., None], -1)[..., 0]
        return -(own * weights).sum()

    got, right = (jit(jax.grad(loss, (0, 1)))(params, x) for loss in (short, whole))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True):
        assert abs(np.asarray(other)).max() > 0.1
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_no_array_has_all_words_at_all_places():
    head, params, x, targets = made()

    def loss(params, x):
        return head.apply({"params": params}, x, targets, method="losses")[0].sum()

    text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(params, x))
    assert f"[22,{max(SIZES)}]" in text and f"[22,{V}]" not in text and f"[{V},22]" not in text


def rnnlm(counts, class_size):
    """Class of each word, as learnVocabFromTrainFile of rnnlm 0.3e divides without old_classes."""
    b, dd, df, a, found = float(sum(counts)), 0.0, 0.0, 0, []
    for count in counts:
        dd += (count / b) ** 0.5
    for count in counts:
        df += (count / b) ** 0.5 / dd
        df = min(df, 1)
        found.append(a)
        if df > (a + 1) / class_size and a < class_size - 1:
            a += 1
    return found


@pytest.mark.parametrize("classes", [1, 2, 7, 40, 100])
def test_classes_are_those_of_rnnlm(classes):
    counts = (1e5 / np.arange(1, 101) ** 1.1).astype(int)
    sizes = divide(counts, classes)
    assert np.repeat(np.arange(len(sizes)), sizes).tolist() == rnnlm(counts, classes)
    assert sum(sizes) == 100 and min(sizes) > 0


def test_a_number_of_classes_out_of_range_is_refused():
    for classes in (-1, 4):
        with pytest.raises(FirthError, match=rf"classes={classes}: expected 0 \(none\) to 3"):
            divide(np.ones(3), classes)
