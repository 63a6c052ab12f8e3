"""XLNet and Transformer-XL: parity with transformers, who sees whom, and memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.published.xlnet import SHAPES, make_xlnet, orders, rows
from helpers.quick import initial, jit

import firth
from firth.errors import FirthError
from firth.layers import relative
from firth.models import transformer_xl, xlnet
from firth.models.model import bound, create, parameter_count, to_layout

TOLERANCE = 1e-5
PROBE = np.random.default_rng(0).normal(size=16)  # not ones: what a norm puts out adds up to 0


@functools.cache
def small(family="xlnet", seed=0, **changes):
    """(model, parameters) with an LM head; weights large enough that every path counts."""
    spec = dict(
        family=family,
        vocab_size=31,
        num_layers=2,
        hidden_size=16,
        num_heads=2,
        intermediate_size=24,
        activation="gelu_tanh",
        init_stddev=0.3,
    )
    model = create(spec | changes, ("lm",))
    params = initial(model, jnp.zeros((1, 4), jnp.int32), seed=seed, scale=0.3)
    return model, params


def torch_of(array, kind="long"):
    import torch

    return getattr(torch.tensor(np.asarray(array)), kind)()


# ----------------------------------------------------------------------------------- parity


@pytest.mark.parametrize("shape", SHAPES)
def test_every_layer_as_in_transformers(shape, tmp_path):
    theirs, encoder = make_xlnet(tmp_path, shape), firth.load(tmp_path)
    tokens, segments = rows(shape)
    mask = np.arange(11) < np.array([11, 8, 5, 11])[:, None]
    out = encoder(tokens=tokens, segments=segments, mask=mask, attentions=True)
    import torch

    with torch.no_grad():
        expected = theirs(
            torch_of(tokens),
            token_type_ids=torch_of(segments),
            attention_mask=torch_of(mask, "float"),
            output_hidden_states=True,
            output_attentions=True,
        )
    for ours, layer in zip(out.hidden, expected.hidden_states, strict=True):
        np.testing.assert_allclose(ours[mask], layer.numpy()[mask], atol=TOLERANCE)
    for ours, layer in zip(out.attentions, expected.attentions, strict=True):
        np.testing.assert_allclose(ours, layer.numpy(), atol=TOLERANCE)
    logits = expected.logits.numpy()
    np.testing.assert_allclose(out.logits["lm"][mask], logits[mask], atol=TOLERANCE)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_two_streams_with_memory_over_three_segments(shape, backwards, tmp_path):
    """`perm_mask`, `target_mapping`, memories, segments and bidirectional data, every layer."""
    import torch

    theirs, encoder = make_xlnet(tmp_path, shape), firth.load(tmp_path)
    body = theirs.transformer
    body.mem_len, body.reuse_len, body.bi_data = 7, 5, backwards

    def streams(model, *given):
        *given, memory = given
        return model.encoder.two_streams(
            *given, train=False, memory=memory, kept=5, backwards=backwards
        )

    run = jit(bound(encoder.model, streams))
    ours, memories = encoder.model.encoder.empty_memory(4, 7), None
    for number in range(3):
        tokens, segments = rows(shape, seed=number)
        ranks, positions = orders(seed=number)
        out, query = run(
            encoder.params, tokens, segments, np.ones((4, 11), bool), ranks, positions, ours
        )
        ours = out.memory
        blocked = ranks[:, None, :] > ranks[:, :, None]
        blocked |= (ranks[:, None, :] == ranks[:, :, None]) & (ranks[:, None, :] > 0)
        mapping = np.eye(11)[positions]
        with torch.no_grad():
            expected = body(
                torch_of(tokens),
                token_type_ids=torch_of(segments),
                perm_mask=torch_of(blocked, "float"),
                target_mapping=torch_of(mapping, "float"),
                mems=memories,
                use_mems=True,
                output_hidden_states=True,
            )
        memories = expected.mems
        np.testing.assert_allclose(query, expected.last_hidden_state.numpy(), atol=TOLERANCE)
        contents = expected.hidden_states[::2]  # content and query stream in turn
        for layer, content in zip(out.hidden, contents, strict=True):
            np.testing.assert_allclose(layer, content.numpy(), atol=TOLERANCE)
        for layer, memory in enumerate(memories):
            filled = len(memory)
            np.testing.assert_allclose(
                ours["hidden"][:, layer, -filled:], memory.numpy().swapaxes(0, 1), atol=TOLERANCE
            )


def test_classifier_as_in_transformers(tmp_path):
    """transformers pads on the left and reads the last place; here it is the last real token."""
    import torch

    theirs = make_xlnet(tmp_path, name="XLNetForSequenceClassification", num_labels=3)
    encoder = firth.load(tmp_path)
    tokens, segments = rows()
    lengths = np.array([11, 8, 5, 11])
    mask = np.arange(11) < lengths[:, None]
    ours = encoder(tokens=tokens, segments=segments, mask=mask).logits["classifier"]
    left = [np.roll(x, 11 - n, -1) for x, n in zip(tokens, lengths, strict=True)]
    left_segments = [np.roll(x, 11 - n, -1) for x, n in zip(segments, lengths, strict=True)]
    with torch.no_grad():
        expected = theirs(
            torch_of(left),
            token_type_ids=torch_of(left_segments),
            attention_mask=torch_of(mask[:, ::-1].copy(), "float"),
        )
    np.testing.assert_allclose(ours, expected.logits.numpy(), atol=TOLERANCE)


@pytest.mark.parametrize(
    "name", ["XLNetLMHeadModel", "XLNetModel", "XLNetForSequenceClassification"]
)
def test_round_trip_is_byte_identical(name, tmp_path):
    make_xlnet(tmp_path / "a", name=name)
    from firth.weights import read, write

    write.write_firth(tmp_path / "b", read.read_model(tmp_path / "a"))
    write.write_published(tmp_path / "c", read.read_model(tmp_path / "b"))
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()


@pytest.mark.parametrize(
    ("size", "encoder", "with_bias"),
    [("base", 116_718_336, 116_750_336), ("large", 360_268_800, 360_300_800)],
)
def test_parameter_counts(size, encoder, with_bias):
    for heads, count in (((), encoder), (("lm",), with_bias)):
        model = create(dict(family="xlnet", **xlnet.size(size)), heads)
        shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))
        assert parameter_count(shapes["params"]) == count


def test_scan_is_the_loop():
    model, params = small()
    scanned, _ = small(scan=True)
    tokens, segments = rows(B=2)
    tokens %= 31
    ranks, positions = orders(B=2)

    def run(model, tokens):
        memory = model.encoder.empty_memory(2, 5)
        given = (tokens, segments, np.ones((2, 11), bool), ranks, positions)
        out, query = model.encoder.two_streams(*given, train=False, memory=memory)
        return out.hidden, query, out.memory

    expected = jit(bound(model, run))(params, tokens)
    found = jit(bound(scanned, run))(to_layout(jax.device_get(params), True), tokens)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), found, expected)


# ------------------------------------------------------------------------- who sees whom


def seen(ranks, positions=None, model=None, memory=None, family="xlnet"):
    """bool [S, L]: does what comes out at each predicted position (of the query stream, or of the
    content stream without `positions`) depend on the content of each token? By exact gradients."""
    model, params = model or small(family)
    L = len(ranks)
    mask = jnp.ones((1, L), bool)

    def out(e_BLD, bound_model):
        encoder = bound_model.encoder
        order = (
            jnp.array([ranks]),
            jnp.array([list(range(L)) if positions is None else positions]),
        )
        enc, query = encoder._run(e_BLD, mask, None, memory, False, False, order)
        return (enc.last if positions is None else query)[0] @ PROBE

    e_BLD = jax.random.normal(jax.random.key(5), (1, L, 16))
    jacobian = jit(
        lambda p: bound(model, lambda m, e: jax.jacrev(lambda e: out(e, m))(e))(p, e_BLD)
    )(params)
    return np.asarray(jnp.abs(jacobian[:, 0]).max(-1) > 0)


def test_the_paper_s_order_3_2_4_1():
    """Figure 1: in the order 3, 2, 4, 1 each token is predicted from those before it."""
    ranks = np.zeros(4, int)
    for place, token in enumerate((3, 2, 4, 1)):
        ranks[token - 1] = place
    contexts = {3: (), 2: (3,), 4: (3, 2), 1: (3, 2, 4)}
    found = seen(ranks, positions=[0, 1, 2, 3])
    content = seen(ranks)
    for token, context in contexts.items():
        assert set(np.flatnonzero(found[token - 1]) + 1) == set(context)  # not itself
        assert set(np.flatnonzero(content[token - 1]) + 1) == {*context, token}  # and itself


def test_new_york_is_a_city():
    """Section 2.6: in the order is, a, city, New, York with New and York as targets, XLNet learns
    New from (is, a, city) and York from (New, is, a, city); BERT learns both from (is, a, city)."""
    words = ["New", "York", "is", "a", "city"]
    order = ["is", "a", "city", "New", "York"]
    ranks = np.zeros(5, int)
    for word in order[3:]:
        ranks[words.index(word)] = 1 + order.index(word)
    found = seen(ranks, positions=[0, 1])
    assert {words[i] for i in np.flatnonzero(found[0])} == {"is", "a", "city"}
    assert {words[i] for i in np.flatnonzero(found[1])} == {"New", "is", "a", "city"}


def test_a_target_with_nothing_before_it_knows_nothing():
    model, params = small()
    run = jit(bound(model, lambda m, t: m.encoder.two_streams(
        t, None, None, jnp.array([[2, 1, 3]]), jnp.array([[1]]), train=False)[1]))  # fmt: skip
    first = run(params, jnp.array([[4, 5, 6]]))
    assert np.array_equal(first, run(params, jnp.array([[7, 8, 9]])))


def test_random_orders():
    for seed in range(3):
        ranks, positions = orders(1, 9, 4, seed)
        found = seen(ranks[0], positions[0])
        expected = ranks[0][None, :] < ranks[0][positions[0]][:, None]
        assert np.array_equal(found, expected)
        mutated = ranks[0][None, :] <= ranks[0][positions[0]][:, None]
        assert not np.array_equal(found, mutated)  # a mask off by one would be noticed


@pytest.mark.parametrize("same_length", [False, True])
def test_a_causal_model_sees_the_past(same_length):
    model, params = small("transformer_xl", same_length=same_length)

    def jacobian(params):
        def out(model, e):
            return jax.jacrev(lambda e: model.encoder.encode(e, None, train=False).last[0] @ PROBE)(
                e
            )

        return bound(model, out)(params, jax.random.normal(jax.random.key(0), (1, 7, 16)))

    found = np.asarray(jnp.abs(jit(jacobian)(params)[:, 0]).max(-1) > 0)
    assert np.array_equal(found, np.tri(7, dtype=bool))


def test_memory_carries_no_gradient():
    model, params = small("transformer_xl")
    tokens = np.arange(10).reshape(1, 10) % 31

    def loss(model):
        memory = model.encoder.empty_memory(1, 5)
        first = model.encoder(tokens[:, :5], memory=memory)
        return (model.encoder(tokens[:, 5:], memory=first.memory).last @ PROBE).sum()

    def gradient(params):
        return jax.grad(lambda p: bound(model, loss)(p))(params)

    rows = np.abs(jit(gradient)(params)["encoder"]["word"]["embedding"]).max(1) > 0
    assert not rows[:5].any() and rows[5:10].all()


# ----------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("untie_r", [False, True])
def test_segments_with_enough_memory_are_one_long_pass(untie_r):
    """Dai et al. 2019, section 3.2: the same log-probabilities, whatever the segments."""
    model, params = small("transformer_xl", untie_r=untie_r)
    tokens = np.random.default_rng(0).integers(0, 31, (2, 24))

    def score(model, tokens, memory=None):
        out = model.encoder(tokens, memory=memory)
        return jax.nn.log_softmax(model.lm(out.last)), out.memory

    step = jit(bound(model, score))
    long, _ = step(params, tokens)
    for length in (1, 5, 8):
        memory, parts = model.encoder.empty_memory(2, 24), []
        for begin in range(0, 24, length):
            part, memory = step(params, tokens[:, begin : begin + length], memory)
            parts.append(part)
        np.testing.assert_allclose(np.concatenate(parts, 1), long, atol=1e-5)
    memory, parts = model.encoder.empty_memory(2, 3), []
    for begin in range(0, 24, 8):
        part, memory = step(params, tokens[:, begin : begin + 8], memory)
        parts.append(part)
    assert np.abs(np.concatenate(parts, 1) - long).max() > 1e-3  # too short a memory is noticed


def test_the_shift_against_a_loop():
    rng = np.random.default_rng(0)
    for L, M, causal in ((5, 0, False), (4, 3, False), (6, 2, True), (1, 4, True)):
        steps = np.asarray(relative.distances(L, M, causal))
        scores = rng.normal(size=(2, 3, L, len(steps))).astype(np.float32)
        found = np.asarray(relative.shift(jnp.asarray(scores), M + L))
        place = np.tile(np.arange(L), (2, 1))
        rowwise = np.asarray(relative.shift_at(jnp.asarray(scores), place, L, M + L))
        for i in range(L):
            for j in range(M + L):
                distance = i + M - j
                if causal and distance < 0:
                    continue
                expected = scores[:, :, i, list(steps).index(distance)]
                assert np.array_equal(found[:, :, i, j], expected)
                assert causal or np.array_equal(rowwise[:, :, i, j], expected)


def test_odd_rows_cannot_run_in_two_directions():
    model, params = small()
    with pytest.raises(FirthError, match="even number of rows"):
        bound(model, lambda m, t: m.encoder.two_streams(
            t, None, None, t, t[:, :2], train=False, backwards=True))(
            params, jnp.zeros((3, 4), jnp.int32))  # fmt: skip


def test_transformer_xl_is_not_published(tmp_path):
    from firth.weights import read, write

    params = small("transformer_xl")[1]
    spec = dict(family="transformer_xl", **transformer_xl.size("tiny"))
    saved = read.Saved(spec, ("lm",), 2, None, False, params, tmp_path, "firth")
    with pytest.raises(FirthError, match="no published layout for transformer_xl"):
        write.write_published(tmp_path / "out", saved)
    assert not (tmp_path / "out").exists()
