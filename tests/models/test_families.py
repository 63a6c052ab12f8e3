"""Every family against transformers on random weights: all layers, heads, round trips."""

import filecmp
import inspect
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.published.families import CASES, CLASSES, SHAPES, make_model
from helpers.quick import jit

import firth
from firth.models.model import to_layout
from firth.weights.read import read_model
from firth.weights.write import write_firth, write_published

TOLERANCE = 2e-5  # 1e-5 where the compiler optimises: other sums of ModernBERT's local attention
HEADS = {  # ours -> the field of transformers' output
    "lm": ("logits",),
    "mlm": ("logits", "prediction_logits"),
    "sop": ("sop_logits",),
    "rtd": ("logits",),
    "classifier": ("logits",),
}


def batch(spec, rows=4, length=11, seed=0):
    """Random ids and segments, padded at the end of some rows with the family's padding id."""
    rng = np.random.default_rng(seed)
    pad = spec.get("pad_id", 0)
    tokens = rng.integers(pad + 1, spec["vocab_size"], (rows, length))
    segments = rng.integers(0, max(spec.get("type_vocab_size", 0), 1), (rows, length))
    mask = np.arange(length) < rng.integers(3, length + 1, (rows, 1))
    mask[0] = True
    return np.where(mask, tokens, pad), segments, mask


def run_torch(torch, model, tokens, segments, mask):
    arguments = dict(
        input_ids=torch.tensor(tokens),
        attention_mask=torch.tensor(mask.astype(np.int64)),
        token_type_ids=torch.tensor(segments),
        output_hidden_states=True,
        output_attentions=True,
    )
    known = "token_type_ids" in inspect.signature(model.forward).parameters
    if not known or "gpt" in model.config.model_type:  # which would look segments up as words
        del arguments["token_type_ids"]
    with torch.no_grad():
        return model(**arguments)


def close(ours, theirs, where=...):
    ours, theirs = np.asarray(ours)[where], theirs.detach().numpy()[where]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE)


FIRST = [(family, next(iter(shapes))) for family, shapes in SHAPES.items()]
WAYS = [(*case, scan) for case in CASES for scan in (False, True)]
OFTEN = [way for way in WAYS if not way[2] or way[:2] in FIRST]


@pytest.mark.parametrize(("family", "shape", "scan"), with_each_change(OFTEN, WAYS))
def test_every_layer_and_head_equals_transformers(torch, tmp_path, family, shape, scan):
    theirs = make_model(tmp_path / "m", family, shape)
    saved = read_model(tmp_path / "m")
    model, params = saved.model(scan=scan), to_layout(saved.params, scan)
    tokens, segments, mask = batch(saved.spec)
    apply = jit(lambda p, *args: model.apply({"params": p}, *args, attentions=True))
    out, logits = apply(params, tokens, segments, mask)

    expected = run_torch(torch, theirs, tokens, segments, mask)
    assert len(out.hidden) == len(expected.hidden_states)
    # What stands at padding means nothing; a local window may hold nothing but padding there.
    real = np.where(mask) if family == "modernbert" else ...
    for ours, hidden in zip(out.hidden, expected.hidden_states, strict=True):
        close(ours, hidden, real)
    for ours, probs in zip(out.attentions, expected.attentions, strict=True):
        close(np.swapaxes(ours, 1, 2), probs.transpose(1, 2), real)
    close(out.last, expected.hidden_states[-1], real)
    assert saved.heads
    for head in saved.heads:
        field = next(name for name in HEADS[head] if hasattr(expected, name))
        close(logits[head], expected[field], real if logits[head].ndim == 3 else ...)
    assert np.abs(out.hidden).mean() > 0.1 and np.std(logits[saved.heads[0]]) > 0.1


@pytest.mark.parametrize(("family", "shape"), with_each_change(FIRST, CASES))
def test_classifiers_equal_transformers(torch, tmp_path, family, shape):
    name = CLASSES[family][-1]
    theirs = make_model(tmp_path / "m", family, shape, name, num_labels=5)
    saved = read_model(tmp_path / "m")
    assert saved.heads == ("classifier",) and saved.num_labels == 5
    tokens, segments, mask = batch(saved.spec)
    _, logits = jit(saved.model().apply)({"params": saved.params}, tokens, segments, mask)
    close(logits["classifier"], run_torch(torch, theirs, tokens, segments, mask).logits)


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, names in CLASSES.items() for name in names]
)
def test_round_trip_is_byte_identical(tmp_path, family, name):
    for shape in SHAPES[family]:
        make_model(tmp_path / shape, family, shape, name)
        write_firth(tmp_path / f"{shape}-firth", read_model(tmp_path / shape))
        write_published(tmp_path / f"{shape}-back", read_model(tmp_path / f"{shape}-firth"))
        for file in ("config.json", "model.safetensors"):
            there, back = tmp_path / shape / file, tmp_path / f"{shape}-back" / file
            assert filecmp.cmp(there, back, shallow=False), file


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, names in CLASSES.items() for name in names]
)
def test_what_is_written_anew_loads_in_transformers(torch, tmp_path, family, name):
    """Weights that were trained here have no original file to go back to."""
    import dataclasses

    import transformers

    shape = next(iter(SHAPES[family]))
    theirs = make_model(tmp_path / "m", family, shape, name)
    saved = read_model(tmp_path / "m")
    write_published(tmp_path / "new", dataclasses.replace(saved, published=None))
    model_class = getattr(transformers, name)
    loaded, report = model_class.from_pretrained(
        tmp_path / "new", output_loading_info=True, attn_implementation="eager"
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    tokens, segments, mask = batch(saved.spec)
    before = run_torch(torch, theirs, tokens, segments, mask)
    after = run_torch(torch, loaded.eval(), tokens, segments, mask)
    torch.testing.assert_close(after.hidden_states[-1], before.hidden_states[-1])


def test_a_padding_row_has_finite_logits(tmp_path):
    make_model(tmp_path / "m", "modernbert", "pairs", CLASSES["modernbert"][-1])
    saved = read_model(tmp_path / "m")
    tokens = np.zeros((2, 5), np.int32)
    mask = np.array([[True] * 5, [False] * 5])
    _, logits = jit(saved.model().apply)({"params": saved.params}, tokens, None, mask)
    assert saved.spec["classifier_pooling"] == "mean"
    assert np.isfinite(logits["classifier"]).all()


def test_roberta_positions_skip_padding_on_the_left(torch, tmp_path):
    theirs = make_model(tmp_path / "m", "roberta", "gelu")
    saved = read_model(tmp_path / "m")
    tokens, segments, mask = batch(saved.spec)
    tokens, mask = tokens[:, ::-1].copy(), mask[:, ::-1].copy()
    out, _ = jit(saved.model().apply)({"params": saved.params}, tokens, segments, mask)
    close(out.last, run_torch(torch, theirs, tokens, segments, mask).hidden_states[-1])


def test_texts_and_pairs_are_framed_as_robertas_tokenizer_does(torch, tmp_path, shared_data):
    """<s> A </s> and <s> A </s></s> B </s>, with the published vocabulary."""
    import transformers

    theirs = make_model(
        tmp_path / "m",
        "roberta",
        "gelu",
        "RobertaModel",
        vocab_size=50265,
        max_position_embeddings=40,
    )
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_data(f"vocabs/roberta-base-{name}"), tmp_path / "m" / name)
    tokenizer = transformers.RobertaTokenizer.from_pretrained(tmp_path / "m")
    texts = ["The vase broke.", ("a first text", "and the second, a longer one")]
    out = firth.load(tmp_path / "m")(texts)
    for row, text in enumerate(texts):
        ids = tokenizer(*([text] if isinstance(text, str) else text))["input_ids"]
        real = out.mask[row]
        assert out.ids[row][real].tolist() == ids
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).last_hidden_state[0]
        np.testing.assert_allclose(out.hidden[-1][row][real], expected, atol=TOLERANCE)


def test_albert_shares_what_it_applies_several_times(tmp_path):
    make_model(tmp_path / "m", "albert", "inner")
    saved = read_model(tmp_path / "m")
    stack = saved.params["encoder"]["stack"]
    assert sorted(stack) == ["group_0", "group_1", "group_2"]
    assert sorted(stack["group_0"]) == ["inner_0", "inner_1"]

    def loss(params):
        out, _ = saved.model().apply({"params": params}, jnp.ones((1, 5), jnp.int32))
        return (out.last**2).sum()

    gradient = jit(jax.grad(loss))(saved.params)["encoder"]["stack"]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["group_1"]["inner_1"]))
