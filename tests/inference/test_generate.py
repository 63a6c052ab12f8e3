"""`firth generate` against transformers and against reading everything anew for each token."""

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from helpers.published.families import POSITIONS, make_generator, make_model

import firth
from firth.errors import FirthError
from firth.inference import decode
from firth.inference import generate as verb

TEXTS = ["the cat", "the dog ran on the mat and", " sat", "dog"]


@pytest.fixture(scope="module", params=["gpt2", "gpt"])
def made(request, quickly, torch, tokenizer, tmp_path_factory):
    """(directory, transformers model, encoder); the model has 9 rows without a token."""
    directory = tmp_path_factory.mktemp("made") / "m"
    shape = {"gpt2": "tanh", "gpt": "gelu"}[request.param]
    model = make_generator(directory, tokenizer, request.param, shape)
    return directory, model, firth.load(directory)


def ids_of(encoder, text):
    return encoder.tokenizer.encode([text], special=True)[0].ids.tolist()


def logits_of(encoder, ids):
    """Scores [L, V] of the tokens that have a name, without a cache; always of one shape inside."""
    padded, mask = np.zeros((1, POSITIONS), np.int32), np.arange(POSITIONS)[None] < len(ids)
    padded[mask] = ids
    out = encoder(tokens=padded, mask=mask)
    return out.logits["lm"][0][: len(ids), : encoder.tokenizer.vocab_size]


# ------------------------------------------------------------------------------ the right tokens


def test_greedy_is_the_likeliest_token_of_each_whole_text(made):
    encoder = made[-1]
    found = encoder.generate(TEXTS, max_tokens=40, greedy=True)
    (default,) = encoder.generate(TEXTS[0], greedy=True)
    assert len(default.ids) == 64 and default.ids[:40] == found[0].ids
    assert [one.row for one in found] == [0, 1, 2, 3]
    for text, one in zip(TEXTS, found, strict=True):
        prompt = ids_of(encoder, text)
        whole = [*prompt, *one.ids]
        likeliest = logits_of(encoder, whole).argmax(-1)
        assert likeliest[len(prompt) - 1 : -1].tolist() == list(one.ids)
        assert one.reason == "length" and len(one.ids) == 40
        text_of = encoder.tokenizer.decode
        assert text_of(whole, skip_special=False) == text + one.text


def test_greedy_equals_transformers(made, torch):
    """Of the model itself, whose rows without a token transformers may choose: they lose here."""
    _, model, encoder = made
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        kept = table[encoder.tokenizer.vocab_size :].clone()
        table[encoder.tokenizer.vocab_size :] = 0
        for text, one in zip(
            TEXTS, encoder.generate(TEXTS, max_tokens=30, greedy=True), strict=True
        ):
            ids = torch.tensor([ids_of(encoder, text)])
            options = dict(max_new_tokens=30, do_sample=False, pad_token_id=0)
            out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            assert out[0, ids.shape[1] :].tolist() == list(one.ids)
        table[encoder.tokenizer.vocab_size :] = kept


@pytest.mark.parametrize("limits", [dict(top_k=3), dict(top_p=0.4), dict(top_k=9, top_p=0.7)])
def test_only_allowed_tokens_are_drawn(gpt2, limits):
    encoder = gpt2[1]
    found = encoder.generate(TEXTS[:2], max_tokens=40, samples=2, temperature=1.5, **limits)
    assert len({one.ids for one in found}) == 4
    for one in found:
        prompt = ids_of(encoder, TEXTS[one.row])
        for place, token in enumerate(one.ids, len(prompt)):
            row = logits_of(encoder, [*prompt, *one.ids])[place - 1] / 1.5
            better = np.sort(row)[::-1]
            rank = (row > row[token]).sum()
            assert rank < limits.get("top_k", len(row))
            probs = np.exp(better - better[0])[: limits.get("top_k")]
            assert rank == 0 or (probs / probs.sum())[:rank].sum() < limits.get("top_p", 1) + 1e-5


def test_rows_without_a_token_are_never_chosen(gpt2):
    encoder = gpt2[1]
    found = encoder.generate(["the"], max_tokens=60, samples=4, temperature=100.0)
    tokens = {token for one in found for token in one.ids}
    assert max(tokens) < encoder.tokenizer.vocab_size < encoder.saved.spec["vocab_size"]
    assert len(tokens) > 100


def test_a_hole_of_the_vocabulary_is_never_chosen(gpt2, monkeypatch):
    encoder = gpt2[1]
    (before,) = encoder.generate("the cat", max_tokens=10, greedy=True)
    vocab = list(encoder.tokenizer.vocab)
    vocab[before.ids[0]] = ""
    monkeypatch.setattr(encoder.tokenizer, "vocab", vocab)
    (one,) = encoder.generate("the cat", max_tokens=10, greedy=True)
    second = logits_of(encoder, ids_of(encoder, "the cat"))[-1].argsort()[-2]
    assert one.ids[0] == second and before.ids[0] not in one.ids


def test_the_positions_in_the_softmax_are_never_chosen(gpt2):
    import dataclasses

    saved = gpt2[1].saved
    over_all = dataclasses.replace(saved, spec=saved.spec | {"softmax_over_all": True})
    found = firth.inference.encoder.Encoder(over_all).generate(TEXTS, max_tokens=9, greedy=True)
    assert found == gpt2[1].generate(TEXTS, max_tokens=9, greedy=True)


def test_half_precision_takes_no_token_that_rounding_does_not_explain(gpt2):
    """Given the same text, a token is the best one in float32 up to the error of bfloat16."""
    encoder, half = gpt2[1], firth.load(gpt2[0], dtype="bfloat16")
    differs = 0
    for one in half.generate(TEXTS, max_tokens=20, greedy=True):
        prompt = ids_of(encoder, TEXTS[one.row])
        whole = [*prompt, *one.ids]
        scores, rounded = (logits_of(each, whole)[len(prompt) - 1 : -1] for each in (encoder, half))
        error = np.abs(scores - rounded).max()
        assert 0 < error < 0.1 * scores.std()
        regret = scores.max(-1) - scores[np.arange(20), list(one.ids)]
        assert regret.max() <= 3 * error
        differs += (scores.std(-1) > 10 * error).sum()
    assert differs == 80  # where a token at random would be far from the best


# ------------------------------------------------------------------------------- seeds and rows


def test_a_seed_gives_the_same_text_and_another_one_another(gpt2):
    encoder = gpt2[1]
    first = encoder.generate(TEXTS, max_tokens=20, seed=5)
    assert encoder.generate(TEXTS, max_tokens=20, seed=5) == first
    other = encoder.generate(TEXTS, max_tokens=20, seed=6)
    assert all(a.ids != b.ids for a, b in zip(first, other, strict=True))
    same = encoder.generate(["the cat"] * 4, max_tokens=20, seed=5)
    assert len({one.ids for one in same}) == 4 and same[0] == first[0]
    one, other = encoder.generate(TEXTS[:1], max_tokens=20, seed=5, samples=2)
    assert one.ids != other.ids


def test_a_row_does_not_depend_on_its_batch(gpt2, monkeypatch):
    encoder = gpt2[1]
    together = encoder.generate(TEXTS, max_tokens=20, samples=2)
    assert [(one.row, one.sample) for one in together] == [(r, s) for r in range(4) for s in (0, 1)]
    others = [TEXTS[0], "a much longer text than the others have", ".", "the mat"]
    beside = encoder.generate(others, max_tokens=30, samples=1)
    assert beside[0].ids[:20] == together[0].ids
    monkeypatch.setattr(verb, "BATCH_SIZE", 4)
    monkeypatch.setattr(verb, "BLOCK", 7)
    assert encoder.generate(TEXTS, max_tokens=20, samples=2) == together


def test_few_shapes_are_compiled(gpt2):
    encoder = gpt2[1]
    for function in (decode._prefill, decode._decode_steps):
        function.clear_cache()
    for words in range(1, 9):
        prompt = "the cat" + " cat" * words
        encoder.generate(prompt, max_tokens=2 + words, temperature=0.5 + words, top_k=words)
    assert decode._prefill._cache_size() == decode._decode_steps._cache_size() == 1


# ------------------------------------------------------------------------------ where it ends


def test_the_end_of_text_ends_a_row_and_not_its_neighbours(gpt2, tokenizer, monkeypatch):
    encoder = gpt2[1]
    whole = encoder.generate(TEXTS, max_tokens=30, greedy=True)
    end = whole[0].ids[4]
    monkeypatch.setattr(type(encoder.tokenizer), "end_id", property(lambda self: end))
    for one, before in zip(encoder.generate(TEXTS, max_tokens=30, greedy=True), whole, strict=True):
        kept = before.ids[: before.ids.index(end) + 1] if end in before.ids else before.ids
        assert one.ids == kept
        assert one.reason == ("end" if end in before.ids else "length")
        text_of = encoder.tokenizer.decode
        written = kept[:-1] if end in before.ids else kept
        assert one.text == text_of(written, skip_special=False)
    # Where no row is open any more, nothing is computed for the rest of the block.
    settings = dict(temperature=1.0, top_k=0, top_p=1.0, greedy=True)
    prompts = [np.array(ids_of(encoder, TEXTS[0]), np.int32)]
    block = decode.blocks(encoder, prompts, [(0, 0)], 20, 0, settings, 16)
    next(block)
    tokens_BT = block.send(np.array([True]))
    assert tokens_BT[0, :5].tolist() == list(whole[0].ids[:5]) and not tokens_BT[0, 5:].any()
    assert tokens_BT.shape == (1, 16) and block.send(np.array([True])).shape == (1, 4)


def test_a_stop_string_cuts_the_text_before_it(gpt2):
    encoder = gpt2[1]
    (whole,) = encoder.generate("the cat", max_tokens=30, seed=3, top_k=9)
    for begin in (0, 3, 11):
        stop = whole.text[begin : begin + 5]
        (one,) = encoder.generate("the cat", max_tokens=30, seed=3, top_k=9, stop=["@@", stop])
        assert one.text == whole.text[: whole.text.index(stop)] and one.reason == "stop"
        assert one.ids == whole.ids[: len(one.ids)] and len(one.ids) < 30
        (never,) = encoder.generate("the cat", max_tokens=30, seed=3, top_k=9, stop=["@@@"])
        assert never == whole


@pytest.mark.parametrize("options", [dict(greedy=True), dict(samples=2, stop=["the", "\ufffd"])])
def test_what_is_streamed_is_the_text(gpt2, options):
    encoder, pieces = gpt2[1], []
    found = encoder.generate(
        TEXTS[:2], max_tokens=20, stream=lambda *piece: pieces.append(piece), **options
    )
    assert found == encoder.generate(TEXTS[:2], max_tokens=20, **options)
    for one in found:
        mine = [p for row, sample, p in pieces if (row, sample) == (one.row, one.sample)]
        assert "".join(mine) == one.text and all(mine)


# ---------------------------------------------------------------------------------- the refusals


def test_an_empty_prompt_begins_a_text(gpt2, monkeypatch):
    encoder = gpt2[1]
    (one,) = encoder.generate("", max_tokens=5, greedy=True)
    end = encoder.tokenizer.end_id
    assert logits_of(encoder, [end, *one.ids]).argmax(-1)[0] == one.ids[0]
    monkeypatch.setattr(type(encoder.tokenizer), "end_id", None)
    with pytest.raises(FirthError, match=r"text 0 is empty, and the tokenizer .* no end-of-text"):
        encoder.generate("")


def test_the_last_position_can_be_filled_and_no_more(gpt2):
    encoder = gpt2[1]
    prompt = "the" + " cat" * 69
    assert len(ids_of(encoder, prompt)) == 70
    (one,) = encoder.generate(prompt, max_tokens=20, greedy=True)
    whole = [*ids_of(encoder, prompt), *one.ids]
    assert logits_of(encoder, whole).argmax(-1)[69:-1].tolist() == list(one.ids)
    with pytest.raises(
        FirthError,
        match="text 1 has 70 tokens and the model 90 positions, so 20 can follow, not 21",
    ):
        encoder.generate(["the", prompt], max_tokens=21)
    with pytest.raises(FirthError, match="has 96 tokens and the model 90 positions, so 0 can"):
        encoder.generate("the" + " cat" * 95, max_tokens=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(temperature=0), "temperature=0: expected a number above 0; .* ask for greedy"),
        (dict(temperature=-1.0), "temperature=-1.0: expected"),
        (dict(temperature=float("nan")), "temperature=nan: expected"),
        (dict(temperature=float("inf")), "temperature=inf: expected"),
        (dict(top_k=-1), r"top_k=-1 is outside 0 \.\. 282, the size of the vocabulary"),
        (dict(top_k=283), r"top_k=283 is outside 0 \.\. 282"),
        (dict(top_p=0.0), "top_p=0.0: expected a probability above 0, at most 1"),
        (dict(top_p=1.1), "top_p=1.1: expected"),
        (dict(greedy=True, top_k=3), "leave temperature, top_k, top_p and samples out"),
        (dict(greedy=True, samples=2), "greedy takes the one likeliest token"),
        (dict(max_tokens=0), "max_tokens=0: expected at least 1"),
        (dict(samples=0), "samples=0: expected at least 1"),
        (dict(seed=-1), r"seed=-1 is outside 0 \.\. 4294967295"),
        (dict(stop="."), r"stop='\.': expected a list of strings"),
        (dict(stop=["a", ""]), "none of them empty"),
    ],
)
def test_bad_settings_are_named(gpt2, settings, message):
    with pytest.raises(FirthError, match=message):
        gpt2[1].generate("the cat", **settings)


def test_bad_texts_are_named(gpt2):
    with pytest.raises(FirthError, match="text 1 is 3, expected a string"):
        gpt2[1].generate(["the", 3])
    with pytest.raises(FirthError, match="expected at least one text"):
        gpt2[1].generate([])


def test_models_that_cannot_generate_are_refused(gpt2, torch, tokenizer, tmp_path):
    make_bert(tmp_path / "bert", "BertForMaskedLM")
    add_tokenizer(tmp_path / "bert")
    with pytest.raises(FirthError, match=r"bert sees .* predicts masked words: use `firth fill`"):
        firth.load(tmp_path / "bert").generate("the cat")
    make_model(tmp_path / "bare", "gpt2", "tanh", "GPT2Model")
    with pytest.raises(FirthError, match=r"bare has no language-model head \('lm'\)"):
        firth.load(tmp_path / "bare").generate("the cat")
    make_model(tmp_path / "mute", "gpt2", "tanh")
    with pytest.raises(FirthError, match="mute holds no tokenizer, which generating needs"):
        firth.load(tmp_path / "mute").generate("the cat")
    with pytest.raises(FirthError, match="was loaded without its head 'lm'"):
        firth.load(gpt2[0], heads=False).generate("the cat")
