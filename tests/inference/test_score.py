"""`firth score` against transformers, one text (and one mask) at a time."""

import functools
import json
import re

import jax
import numpy as np
import pytest
from helpers.cases import with_each_change
from helpers.published.bert import WORDS, add_tokenizer, make_bert
from helpers.published.families import make_model
from helpers.published.xlnet import make_xlnet
from helpers.quick import jit

import firth
from firth import cli
from firth.data.corpus.stream import Stream
from firth.errors import FirthError
from firth.inference import decode
from firth.inference.language import masked
from firth.inference.language.row_scores import ROWS
from firth.inference.score import _overlapping, score, score_stream, score_texts
from firth.models.model import bound, create
from firth.objectives.clm import CausalLM
from firth.tokenizers.load import train_tokenizer
from firth.weights.read import Saved
from firth.weights.write import write_firth

TEXTS = ["the cat sat on the mat .", "dogs ran", "", "a fish ate and a dog ate", "cat"]


def made(tmp_path_factory, kind):
    """(directory, transformers model) of one kind, with the small WordPiece tokenizer."""
    directory = tmp_path_factory.mktemp(kind) / "m"
    size = len(WORDS)
    if kind == "causal":
        ends = dict(eos_token_id=None, bos_token_id=None)
        model = make_model(directory, "gpt2", "tanh", vocab_size=size, n_positions=40, **ends)
    elif kind == "discriminator":
        model = make_model(
            directory, "electra", "projected", "ElectraForPreTraining", vocab_size=size
        )
    elif kind == "permutation":
        model = make_xlnet(directory, vocab_size=size)
    else:
        model = make_bert(directory, "BertForMaskedLM", vocab_size=size)
    add_tokenizer(directory)
    return directory, model


@pytest.fixture(scope="module", params=["causal", "permutation", "pseudo", "discriminator"])
def model(request, torch, tmp_path_factory):
    return request.param, *made(tmp_path_factory, request.param)


def expected(torch, kind, model, tokenizer, text):
    """Log-probabilities of the text's tokens, each from its own forward pass."""
    return expected_of(torch, kind, model, tokenizer, tokenizer.encode([text])[0].ids.tolist())


def expected_of(torch, kind, model, tokenizer, ids):
    """The same of token ids."""
    values = []
    for i, number in enumerate(ids):
        with torch.no_grad():
            if kind == "discriminator":
                row = torch.tensor([[tokenizer.cls_id, *ids, tokenizer.sep_id]])
                values.append(float(-model(row).logits[0, 1 + i].double().exp().log1p()))
                continue
            if kind == "causal":
                given = torch.tensor([[tokenizer.end_id, *ids[:i]]])
                logits = model(given).logits[0, -1]
            elif kind == "pseudo":
                row = [tokenizer.cls_id, *ids, tokenizer.sep_id]
                row[1 + i] = tokenizer.mask_id
                logits = model(torch.tensor([row])).logits[0, 1 + i]
            else:
                n = len(ids)
                place = np.arange(n)
                blocked = torch.tensor((place >= place[:, None])[None]).float()
                target = torch.tensor(np.eye(n)[None, [i]]).float()
                segments = torch.zeros((1, n), dtype=torch.long)
                found = model(
                    torch.tensor([ids]),
                    token_type_ids=segments,
                    perm_mask=blocked,
                    target_mapping=target,
                )
                logits = found.logits[0, 0]
            values.append(float(logits.log_softmax(-1)[number]))
    return values


def test_every_token_as_in_transformers(torch, model):
    kind, directory, theirs = model
    encoder = firth.load(directory)
    for text, found in zip(TEXTS, score(encoder, TEXTS), strict=True):
        values = expected(torch, kind, theirs, encoder.tokenizer, text)
        first = kind == "permutation"  # transformers lets the first see itself: nothing is before
        np.testing.assert_allclose(found.log_probs[first:], values[first:], atol=1e-5)
        assert found.kind == kind and len(found.tokens) == len(found.ids) == len(values)
        np.testing.assert_allclose(found.total, found.log_probs.sum(), rtol=1e-6)


@pytest.mark.parametrize("text", ["cats ran , dogs", "aa fishing abc", "catss"])
def test_later_pieces_of_a_word_are_masked_with_it(torch, text, tmp_path_factory):
    """Each token alone in transformers, with all pieces after it in its word hidden too."""
    directory, theirs = made(tmp_path_factory, "pseudo")
    encoder = firth.load(directory)
    tokenizer = encoder.tokenizer
    ids = tokenizer.encode([text])[0].ids.tolist()
    pieces = [token.startswith("##") for token in map(tokenizer.token, ids)]
    assert any(pieces)
    values = []
    for i, number in enumerate(ids):
        row = [tokenizer.cls_id, *ids, tokenizer.sep_id]
        row[1 + i] = tokenizer.mask_id
        for later in range(i + 1, len(ids)):
            if not pieces[later]:
                break
            row[1 + later] = tokenizer.mask_id
        with torch.no_grad():
            logits = theirs(torch.tensor([row])).logits[0, 1 + i]
        values.append(float(logits.log_softmax(-1)[number]))
    [within], [alone] = score(encoder, [text], within_word=True), score(encoder, [text])
    np.testing.assert_allclose(within.log_probs, values, atol=1e-5)
    assert np.abs(within.log_probs - alone.log_probs).max() > 1e-3


def test_only_masked_models_mask_within_words(model):
    kind, directory, _ = model
    if kind == "pseudo":
        return
    with pytest.raises(FirthError, match=f"gives {kind} scores, for which no pieces are masked"):
        score(firth.load(directory), ["cats"], within_word=True)


def test_an_input_that_texts_share_is_computed_once(torch, tmp_path_factory):
    """The same text, and texts that differ in the masked token alone, however many they are."""
    encoder = firth.load(made(tmp_path_factory, "pseudo")[0])
    texts = [f"the {word} sat" for word in ("cat", "dog", "fish", "cat", "mat", "food")]
    rows = [ROWS["pseudo"](encoder, e.ids, e.words, False) for e in encoder.tokenizer.encode(texts)]
    (inputs,) = masked._inputs(rows, encoder.tokenizer.mask_id, False)
    # "the [MASK] sat" with five targets, two at a time; two other places of five different texts
    assert len(inputs.tokens) == 3 + 5 * 2 and inputs.targets.shape == (13, 2)
    assert inputs.slots.max() == 1
    for text, found in zip(texts, score(encoder, texts), strict=True):
        np.testing.assert_allclose(found.log_probs, score(encoder, [text])[0].log_probs, atol=1e-5)


def test_a_masked_row_has_a_token_of_padding_at_most(torch, tmp_path_factory, monkeypatch):
    """There is a row for each token, so padding is what the scores of short texts cost."""
    encoder = firth.load(made(tmp_path_factory, "pseudo")[0])
    padded, pad = [], encoder.pad

    def noted(rows, length):
        padded.append(length)
        return pad(rows, length)

    monkeypatch.setattr(encoder, "pad", noted)
    for words in (1, 2, 3, 4, 7):
        score(encoder, [" ".join(["cat"] * words)])
        assert padded.pop() - (words + 2) in (0, 1) and not padded


@pytest.mark.parametrize("within_word", [False, True])
def test_many_inputs_are_compared_a_part_at_a_time(
    within_word, torch, tmp_path_factory, monkeypatch
):
    """Texts of several lengths, one of them empty, each with the scores that it has alone."""
    encoder = firth.load(made(tmp_path_factory, "pseudo")[0])
    texts = [
        "cats ran , dogs",
        "",
        "the cat sat",
        "the mat sat",
        "a cat",
        "aa fishing abc",
        "a cat",
    ]
    alone = [score(encoder, [text], within_word=within_word)[0].log_probs for text in texts]
    monkeypatch.setattr(masked, "CELLS", 16)  # a text at a time
    for found, expected in zip(score(encoder, texts, within_word=within_word), alone, strict=True):
        np.testing.assert_allclose(found.log_probs, expected, atol=1e-5)


def test_a_stream_of_texts(torch, model):
    """11 tokens are read as 0 to 6, 3 to 9 and 5 to 11; each counts where it has the most text."""
    kind, directory, theirs = model
    encoder, rng = firth.load(directory), np.random.default_rng(0)
    texts = [rng.integers(5, len(WORDS), n) for n in (3, 0, 11, 1)]
    ended = [np.append(text, encoder.tokenizer.end_id) for text in texts]
    starts = np.concatenate([np.arange(len(text)) == 0 for text in ended])
    stream = Stream(np.concatenate(ended), starts)
    if kind in ("causal", "discriminator"):
        with pytest.raises(FirthError, match=f"is (a )?{kind}"):
            score_texts(encoder, stream, 6)
        return
    parts = {0: [(0, 0, 3)], 2: [(0, 0, 4), (3, 4, 7), (5, 7, 11)], 3: [(0, 0, 1)]}
    values = []
    for number, text in enumerate(texts):
        for begin, low, high in parts.get(number, ()):
            ids = text[begin : begin + 6].tolist()
            scores = expected_of(torch, kind, theirs, encoder.tokenizer, ids)
            values += scores[low - begin : high - begin]
        values.append(np.nan)
    found = score_texts(encoder, stream, 6)
    if kind == "permutation":  # transformers lets the first token of a text see itself
        found, values = found[~starts], np.array(values)[~starts]
    np.testing.assert_allclose(found, values, atol=1e-5)
    with pytest.raises(FirthError, match="window=1: expected at least 2"):
        score_texts(encoder, stream, 1)


@pytest.mark.parametrize("window", [2, 7, 8])
@pytest.mark.parametrize("length", range(30))
def test_windows_cover_a_text_once(length, window):
    found = list(_overlapping(length, window))
    assert [low for _, low, _ in found] == [0, *(high for _, _, high in found[:-1])]
    assert found[-1][2] == length
    for begin, low, high in found:
        assert 0 <= begin <= low <= high <= begin + window and begin <= max(length - window, 0)
        assert begin == 0 or low - begin >= window // 4
        assert begin + window >= length or begin + window - high >= window // 4


def test_a_score_does_not_depend_on_its_batch(model):
    encoder = firth.load(model[1])
    alone = [score(encoder, [text])[0].log_probs for text in TEXTS]
    for found, one in zip(score(encoder, TEXTS, batch_size=3), alone, strict=True):
        np.testing.assert_allclose(found.log_probs, one, atol=1e-5)


def test_a_shape_is_compiled_once_for_an_encoder(model):
    encoder = firth.load(model[1])
    first = score(encoder, TEXTS, batch_size=1)
    (program,) = encoder._programs.values()
    count = program.made + program.read
    again = score(encoder, TEXTS[::-1], batch_size=1)[::-1]
    assert list(encoder._programs.values()) == [program]
    assert program.made + program.read == count <= 4  # rows of 4, 8 and 12 tokens, and the last
    for one, other in zip(first, again, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-6)


def test_the_end_of_the_text(model):
    kind, directory, _ = model
    encoder = firth.load(directory)
    if kind != "causal":
        with pytest.raises(FirthError, match="no end of the text to score"):
            score(encoder, ["cat"], end=True)
        return
    [with_end], [without] = score(encoder, ["cat"], end=True), score(encoder, ["cat"])
    assert with_end.ids == (*without.ids, encoder.tokenizer.end_id)
    np.testing.assert_allclose(with_end.log_probs[:-1], without.log_probs, atol=1e-6)


def test_the_command(model, tmp_path, capsys):
    kind, directory, _ = model
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    argv = f"score --model {directory} --input {tmp_path}/in.txt --output {tmp_path}/out.jsonl"
    assert cli.main(argv.split()) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    found = score(firth.load(directory), TEXTS)
    for line, one in zip(lines, found, strict=True):
        np.testing.assert_allclose(line["log_probs"], one.log_probs, atol=2e-6)
        assert tuple(line["tokens"]) == one.tokens and line["kind"] == kind
    count = sum(len(one.ids) for one in found)
    mean = -sum(one.total for one in found) / count
    assert f"5 texts, {count} tokens, {mean:.4f} nats a token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "reason"),
    [("\n", "in.txt is empty"), ("cat\n" + "the " * 60 + "\n", "in.txt:2 has 6[0-9] tokens")],
)
def test_bad_texts(content, reason, torch, tmp_path, tmp_path_factory, capsys):
    directory, _ = made(tmp_path_factory, "causal")
    (tmp_path / "in.txt").write_text(content)
    argv = f"score --model {directory} --input {tmp_path}/in.txt --output {tmp_path}/out.jsonl"
    assert cli.main(argv.split()) == 2
    assert re.search(reason, capsys.readouterr().err)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_model_that_predicts_no_tokens(torch, tmp_path):
    make_bert(tmp_path / "m", "BertModel", vocab_size=len(WORDS))
    add_tokenizer(tmp_path / "m")
    with pytest.raises(FirthError, match="no head that scores tokens"):
        score(firth.load(tmp_path / "m"), ["cat"])


BODIES = {
    "transformer_xl": dict(
        num_layers=2, hidden_size=16, num_heads=2, intermediate_size=24, init_stddev=0.3
    ),
    "lstm": dict(num_layers=2, hidden_size=16, init_range=0.8),
    "rnn": dict(hidden_size=16, init_stddev=0.8),
}


def word_model(tmp_path, name):
    """(vocabulary of whole words, which knows only <unk> and <eos>; a model, as it is loaded)."""
    words = train_tokenizer("word", ["the cat sat on the mat and the dog ran"], None)
    spec = dict(family=name, vocab_size=words.vocab_size) | BODIES[name]
    words.save(tmp_path / "words")
    params = create(spec, ("lm",)).init(jax.random.key(0), np.zeros((1, 4), int))["params"]
    params = jax.tree.map(np.asarray, jax.device_get(params))
    saved = Saved(
        spec, ("lm",), 2, None, False, params, tmp_path, "firth", tokenizer_path=tmp_path / "words"
    )
    write_firth(tmp_path / "m", saved)
    return words, firth.load(tmp_path / "m")


@pytest.mark.parametrize("name", with_each_change(["lstm"], BODIES))
def test_a_word_model_without_special_tokens(tmp_path, name):
    """Each prefix read anew."""
    words, encoder = word_model(tmp_path, name)
    texts = ["the cat ran", "mat", "on the mat the dog sat"]
    for text, found in zip(texts, score(encoder, texts, end=True), strict=True):
        assert found.tokens == (*text.split(), "<eos>")
        for i, number in enumerate(found.ids):
            out = encoder(tokens=[[words.end_id, *found.ids[:i]]])
            values = np.asarray(jax.nn.log_softmax(out.logits["lm"][0, -1]))
            np.testing.assert_allclose(found.log_probs[i], values[number], atol=1e-5)
    out = encoder(texts)
    assert out.tokens[1] == ["<eos>", "mat", "<eos>"]


def test_a_long_text_is_read_in_windows(gpt2):
    _, encoder = gpt2
    end = encoder.tokenizer.end_id
    tokens = np.random.default_rng(0).integers(5, 200, 29)
    expected, text = [], [end, *tokens.tolist()]
    begins = [0, 4, 8, 12, 16, 20, 24]
    for t in range(29):  # the first window of 8 that predicts the token
        begin = next(begin for begin in begins if t < begin + 8)
        ids = np.array([text[begin : t + 1]])
        logits = encoder(tokens=ids).logits["lm"][0, -1].astype(np.float64)
        logits -= logits.max()
        expected.append(logits[tokens[t]] - np.log(np.exp(logits).sum()))
    measured = score_stream(encoder, tokens, 8)
    np.testing.assert_allclose(measured, expected, atol=1e-4)
    short = score_stream(encoder, tokens[:3], 8)
    np.testing.assert_allclose(short, expected[:3], atol=1e-4)
    with pytest.raises(FirthError, match="window=1: expected 2 to"):
        score_stream(encoder, tokens, 1)


@pytest.mark.parametrize("name", BODIES)
def test_a_model_with_memory_reads_a_long_text_once(tmp_path, name):
    """A recurrent network as if the text were one row, Transformer-XL as `firth evaluate` does."""
    words, encoder = word_model(tmp_path, name)
    tokens = np.random.default_rng(0).integers(0, words.vocab_size, 29)
    text = np.array([words.end_id, *tokens])
    if name == "transformer_xl":
        objective = CausalLM(memory=8)
        carry = objective.carry(encoder.model, 1)
        run = jit(bound(encoder.model, functools.partial(objective.losses, train=False)))
        losses = []
        for t in range(0, 29, 8):
            real = np.arange(8)[None] < 29 - t
            read = min(8, 29 - t)
            pair = dict(tokens=text[t : t + read], targets=tokens[t : t + read])
            batch = {name: np.pad(ids, (0, 8 - read))[None] for name, ids in pair.items()}
            batch |= dict(segments=None, mask=real, target_weights=real * 1.0, carry=carry)
            sums, _, carry = run(encoder.params, batch)
            losses.append(float(sums["lm"]))
        expected = np.array(losses)
    else:
        logits = encoder(tokens=text[None, :-1]).logits["lm"][0].astype(np.float64)
        chosen = logits[np.arange(29), tokens]
        expected = chosen - np.log(np.exp(logits).sum(-1))
    measured = score_stream(encoder, tokens, 8)
    if name == "transformer_xl":
        assert measured.shape == (29,)
        measured = -np.add.reduceat(measured, range(0, 29, 8))
    np.testing.assert_allclose(measured, expected, atol=1e-4)
    assert score_stream(encoder, tokens[:0], 8).shape == (0,)


@pytest.mark.parametrize("name", ["lstm", "rnn"])
def test_a_recurrent_network_continues_by_its_state(tmp_path, name, monkeypatch):
    """The likeliest token of each whole text, read anew; prompts of several lengths at once."""
    monkeypatch.setattr(decode, "FIRST", 8)  # where a cache would grow, the state does not
    words, encoder = word_model(tmp_path, name)
    prompts = ["the cat", "the dog sat on the mat and", ""]
    found = encoder.generate(prompts, max_tokens=20, greedy=True)
    assert max(len(one.ids) for one in found) > 3
    for text, one in zip(prompts, found, strict=True):
        before = words.encode([text])[0].ids.tolist() if text else [words.end_id]
        logits = encoder(tokens=[[*before, *one.ids]]).logits["lm"][0]
        likeliest = logits.argmax(-1)[len(before) - 1 : -1]
        assert likeliest.tolist() == list(one.ids)
