"""`firth.load` and `firth represent` against transformers on the same texts."""

import re

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert, minilm

import firth
from firth import cli
from firth.commands import represent as verb
from firth.errors import FirthError
from firth.inference import represent, vectors
from firth.progress import Progress

TEXTS = [
    "the cat sat on the mat .",
    ("the dog ran", "cats, dogs and a fish sat on mats ."),
    "fish",
    "",
    "abcdefg xyz the running dog ate the food [MASK] on the mat and the cat ran",
]


@pytest.fixture(scope="module")
def made(torch, tmp_path_factory):
    """(directory, transformers model, transformers tokenizer, encoder)."""
    directory = tmp_path_factory.mktemp("made") / "m"
    model = make_bert(directory, "BertForPreTraining", num_hidden_layers=2)
    tokenizer = add_tokenizer(directory)
    return directory, model, tokenizer, firth.load(directory)


def expect(torch, model, tokenizer, text, **options):
    """transformers on one text or pair, so without padding: (tokens, outputs)."""
    pair = (text,) if isinstance(text, str) else text
    batch = tokenizer(*pair, return_tensors="pt", **options)
    with torch.no_grad():
        out = model(**batch, output_hidden_states=True, output_attentions=True)
    return tokenizer.convert_ids_to_tokens(batch["input_ids"][0]), batch, out


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=0, atol=1e-5)


def test_texts_and_pairs_equal_transformers(torch, made):
    _, model, tokenizer, encoder = made
    got = encoder(TEXTS, attentions=True, batch_size=2)
    assert got.ids.dtype == got.segments.dtype == np.int32 and got.mask.dtype == bool
    assert got.hidden.dtype == np.float32
    lengths = [len(tokens) for tokens in got.tokens]
    assert got.ids.shape == (len(TEXTS), max(lengths))  # the bucket's padding is gone
    for i, text in enumerate(TEXTS):
        tokens, batch, out = expect(torch, model, tokenizer, text)
        n = len(tokens)
        assert got.tokens[i] == tokens
        assert got.ids[i, :n].tolist() == batch["input_ids"][0].tolist()
        assert got.segments[i, :n].tolist() == batch["token_type_ids"][0].tolist()
        assert got.mask[i].tolist() == [True] * n + [False] * (max(lengths) - n)
        assert (got.ids[i, n:] == tokenizer.pad_token_id).all() and not got.segments[i, n:].any()
        for ours, theirs in zip(got.hidden[:, i, :n], out.hidden_states, strict=True):
            close(ours, theirs[0])
        for ours, theirs in zip(got.attentions[:, i, :, :n, :n], out.attentions, strict=True):
            close(ours, theirs[0])
        close(got.logits["mlm"][i, :n], out.prediction_logits[0])
        close(got.logits["nsp"][i], out.seq_relationship_logits[0])
        close(got.pooled[i], model.bert.pooler(out.hidden_states[-1])[0].detach())


def test_arrays_need_no_tokenizer(torch, tmp_path):
    model = make_bert(tmp_path / "m", "BertForSequenceClassification", num_labels=3)
    encoder = firth.load(tmp_path / "m")
    rng = np.random.default_rng(0)
    tokens, segments = rng.integers(0, 97, (5, 9)), rng.integers(0, 2, (5, 9))
    mask = np.arange(9) < rng.integers(1, 10, (5, 1))
    got = encoder(tokens=tokens, mask=mask, segments=segments, batch_size=2)
    with torch.no_grad():
        out = model(
            torch.tensor(tokens),
            attention_mask=torch.tensor(mask.astype(int)),
            token_type_ids=torch.tensor(segments),
            output_hidden_states=True,
        )
    for ours, theirs in zip(got.hidden, out.hidden_states, strict=True):
        close(ours, theirs)
    close(got.logits["classifier"], out.logits)
    assert got.tokens == [row[real].tolist() for row, real in zip(tokens, mask, strict=True)]
    assert got.attentions is None
    with pytest.raises(FirthError, match="holds no tokenizer, which reading texts needs"):
        encoder(["text"])


def test_truncation_equals_transformers(torch, made):
    """One token at a time from the longer text of a pair, where there is a longer one."""
    _, model, tokenizer, encoder = made
    long = "the cat sat on the mat and the dog ate the fish . " * 3
    assert encoder(["cat " * 38]).ids.shape == (1, 40)  # what just fits needs no truncation
    for text in (long, (long, "the dog ran"), ("the dog ran", long)):
        with pytest.raises(FirthError, match=r"text 1 has \d+ tokens .* has 40 positions"):
            encoder(["fish", text])
        tokens, _, out = expect(
            torch, model, tokenizer, text, truncation="longest_first", max_length=40
        )
        got = encoder([text], truncate=True)
        assert got.tokens == [tokens] and len(tokens) == 40
        close(got.hidden[-1, 0], out.hidden_states[-1][0])


def test_few_shapes_are_compiled(made):
    encoder = firth.load(made[0], heads=False)
    for words in range(1, 30):  # 3 to 31 tokens: the buckets 16 and 32
        encoder(["cat " * words])
    (program,) = encoder._programs.values()
    assert program.made + program.read == 2
    for texts in range(1, 10):  # 1, 2, 4 rows, of which 1 is known already
        got = encoder(["cat"] * texts, batch_size=4)
        assert got.logits == {} and got.hidden.shape[1] == texts
    assert program.made + program.read == 2 + 2


def test_heads_and_dtype_are_chosen(made):
    directory, *_, encoder = made
    assert set(encoder(["cat"]).logits) == {"mlm", "nsp"}
    assert set(firth.load(directory, heads=("nsp",))(["cat"]).logits) == {"nsp"}
    half = firth.load(directory, dtype="bfloat16")(["the cat sat"])
    whole = encoder(["the cat sat"])
    assert half.hidden.dtype == np.float32
    difference = np.abs(half.hidden - whole.hidden).max()
    assert 1e-4 < difference < 0.3  # of hidden states about 1 in size
    with pytest.raises(FirthError, match="has no head 'classifier'; it has mlm, nsp"):
        firth.load(directory, heads=("classifier",))
    with pytest.raises(FirthError, match="dtype='int8' is unknown"):
        firth.load(directory, dtype="int8")


def test_a_saved_encoder_is_the_published_directory(made, tmp_path):
    directory, *_, encoder = made
    encoder.save(tmp_path / "copy")
    for file in directory.iterdir():
        assert (tmp_path / "copy" / file.name).read_bytes() == file.read_bytes()
    with pytest.raises(FirthError, match="is not empty"):
        encoder.save(tmp_path / "copy")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e(), "give either texts or tokens="),
        (lambda e: e(["a"], tokens=[[1]]), "give either texts or tokens="),
        (lambda e: e("the cat"), "expected a list of texts, not 'the cat'"),
        (lambda e: e([]), "expected a list of texts"),
        (lambda e: e(["a", 3]), "text 1 is 3, expected a string or two of them"),
        (lambda e: e([("a", "b", "c")]), "text 0 is "),
        (lambda e: e(tokens=[[1, 97]]), r"tokens range from 1 to 97, outside 0 \.\. 96"),
        (lambda e: e(tokens=[[1, -1]]), r"tokens range from -1 to 1"),
        (lambda e: e(tokens=[[1, 2]], segments=[[0, 2]]), r"segments .*outside 0 \.\. 1"),
        (lambda e: e(tokens=[[1.5, 2]]), "tokens are float64, expected integers"),
        (lambda e: e(tokens=[1, 2]), r"of one shape \[B, L\]"),
        (lambda e: e(tokens=[[1, 2]], mask=[[1]]), r"of one shape \[B, L\]"),
        (lambda e: e(tokens=np.ones((1, 41), int)), "L=41, but the model has 40 positions"),
    ],
)
def test_bad_calls_are_named(made, call, message):
    with pytest.raises(FirthError, match=message):
        call(made[-1])


# --------------------------------------------------------------------------------- the command


def run(model, folder, text, *options):
    """Run `firth represent` on text; returns what it wrote."""
    (folder / "in.txt").write_text(text)
    files = ["--input", str(folder / "in.txt"), "--output", str(folder / "out.npz")]
    assert verb.main(["--model", str(model), *files, *options]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["in.txt", "out.npz"]
    with np.load(folder / "out.npz", allow_pickle=False) as archive:
        return dict(archive)


def lines_of(texts):
    return "".join((t if isinstance(t, str) else "\t".join(t)) + "\n" for t in texts)


@pytest.fixture
def small_windows(monkeypatch):
    """Sort so few texts at once that these tests have several windows."""
    monkeypatch.setattr(vectors, "SORTED_BATCHES", dict(none=1, cls=2, mean=2))


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_pooled_vectors_equal_transformers(torch, made, tmp_path, small_windows, pool):
    directory, model, tokenizer, _ = made
    texts = [*TEXTS, *reversed(TEXTS), "dog"]
    options = (f"--pool={pool}", "--layers=-1,0,1", "--batch-size=4")
    got = run(directory, tmp_path, lines_of(texts), *options)
    assert got["layers"].tolist() == [2, 0, 1]
    assert got["vectors"].shape == (len(texts), 3, 36) and got["vectors"].dtype == np.float32
    for row, text in zip(got["vectors"], texts, strict=True):
        *_, out = expect(torch, model, tokenizer, text)
        for ours, layer in zip(row, (-1, 0, 1), strict=True):
            hidden = out.hidden_states[layer][0]
            close(ours, hidden.mean(0) if pool == "mean" else hidden[0])


def test_tokens_equal_transformers(torch, made, tmp_path, small_windows):
    directory, model, tokenizer, _ = made
    texts = [*TEXTS, *reversed(TEXTS)]
    got = run(directory, tmp_path, lines_of(texts), "--pool=none", "--batch-size=4")
    about = {"model", "pool", "normalized"}
    assert set(got) == {"hidden", "tokens", "offsets", "layers"} | about
    assert len(got["hidden"]) == len(got["tokens"]) == got["offsets"][-1]
    assert got["offsets"][0] == 0 and len(got["offsets"]) == len(texts) + 1
    for i, text in enumerate(texts):
        begin, end = got["offsets"][i : i + 2]
        tokens, _, out = expect(torch, model, tokenizer, text)
        assert got["tokens"][begin:end].tolist() == tokens
        close(got["hidden"][begin:end], out.hidden_states[-1][0])


def test_one_layer_has_no_layer_axis_and_the_last_is_the_default(made, tmp_path):
    got = run(made[0], tmp_path, "the cat\nthe dog\n")
    encoder = made[-1]
    expected = [encoder([text]).hidden[-1, 0].mean(0) for text in ("the cat", "the dog")]
    np.testing.assert_allclose(got["vectors"], expected, atol=1e-6)
    assert got["layers"].tolist() == [2]


def test_lines_may_come_from_standard_input(made, tmp_path, stdin):
    stdin(b"\xef\xbb\xbfthe cat\r\n\nthe dog")
    output = tmp_path / "out.npz"
    arguments = ["--model", str(made[0]), "--input", "-", "--output", str(output)]
    assert verb.main(arguments) == 0
    expected = run(made[0], tmp_path, "the cat\n\nthe dog\n")["vectors"]
    with np.load(output) as got:
        np.testing.assert_array_equal(got["vectors"], expected)
    assert len(expected) == 3  # an empty line keeps its row


def test_max_length_cuts(torch, made, tmp_path):
    directory, model, tokenizer, _ = made
    text = "the cat sat on the mat and the dog ran"
    got = run(directory, tmp_path, text + "\n", "--max-length=6", "--pool=none")
    tokens, _, out = expect(torch, model, tokenizer, text, truncation=True, max_length=6)
    assert got["tokens"].tolist() == tokens
    close(got["hidden"], out.hidden_states[-1][0])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"", (), r"in\.txt is empty; expected one text a line"),
        (b"\n \n", (), r"in\.txt is empty"),
        (b"fish\n" + b"cat " * 50 + b"\n", (), r"in\.txt:2 has 52 tokens .* has 40 positions"),
        (b"a\nb\tc\td\n", (), r"in\.txt:2: 3 texts between tabs, expected one or two"),
        (b"fish\nsm\xf8rbr\n", (), r"in\.txt:2: not UTF-8 at byte 7 of the file; .*errors=replace"),
        (b"a\n", ("--layers=3",), r"no layer 3: this model has 0 \(the embeddings\) to 2, or -3"),
        (b"a\n", ("--layers=-4",), "no layer -4"),
        (b"a\n", ("--max-length=41",), r"max_length=41 is outside 3 \.\. 40"),
        (b"a\n", ("--model=gone",), "gone does not exist"),
        (b"a\n", ("--input=gone",), "cannot read gone: No such file"),
        (b"a\n", ("--output=gone/x.npz",), "expected a file in a directory that exists"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(made, tmp_path, capsys, text, options, message):
    source, output = tmp_path / "in.txt", tmp_path / "out.npz"
    source.write_bytes(text)
    output.write_text("what was there before")
    arguments = ["--model", str(made[0]), "--input", str(source), "--output", str(output)]
    assert cli.main(["represent", *arguments, *options]) == 2
    assert re.fullmatch(f"firth represent: error: .*{message}.*\n", capsys.readouterr().err)
    assert output.read_text() == "what was there before"
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.npz"}


def test_undecodable_bytes_may_be_replaced(made, tmp_path):
    (tmp_path / "raw").write_bytes(b"the c\xf8t\n")
    arguments = ["--model", str(made[0]), "--input", str(tmp_path / "raw"), "--errors=replace"]
    assert verb.main([*arguments, "--output", str(tmp_path / "out.npz")]) == 0


def test_memory_does_not_grow_with_the_number_of_texts(made, tmp_path):
    """Texts are drawn as vectors are written: never more than a window is held."""
    drawn = 0

    def endless():
        nonlocal drawn
        for drawn in range(1, 1001):
            yield f"line {drawn}", "the cat"

    class Watch(Progress):
        most = 0

        def update(self, step, text=""):
            self.most = max(self.most, drawn - step)

    watch = Watch(None, 0, "", quiet=True)
    encoder = made[-1]
    count = represent.represent(
        encoder, endless(), tmp_path / "o.npz", batch_size=2, progress=watch
    )
    assert count == 1000 and watch.most < 2 * vectors.SORTED_BATCHES["mean"]


# -------------------------------------------------------------------------------- real weights


def test_minilm_cosine_equals_transformers(torch, tmp_path):
    import transformers

    pair = ["A man is eating food.", "A man is eating a piece of bread."]
    got = run(minilm(), tmp_path, "\n".join(pair) + "\n", "--pool=mean")["vectors"]

    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())
    model = transformers.AutoModel.from_pretrained(minilm(), attn_implementation="eager").eval()
    batch = tokenizer(pair, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1).float()
    theirs = ((hidden * weights).sum(1) / weights.sum(1)).numpy()

    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert abs(cosine(*got) - cosine(*theirs)) < 1e-5
    assert cosine(*theirs) > 0.5
    np.testing.assert_allclose(got, theirs, rtol=0, atol=1e-5)


def test_where_the_token_that_stands_for_a_text_comes_last(torch, tmp_path):
    """XLNet ends with <cls>, in a segment of its own: `--pool=cls` takes that token."""
    from helpers.published.xlnet import make_xlnet

    model = make_xlnet(tmp_path / "m", vocab_size=97)
    tokenizer = add_tokenizer(tmp_path / "m")
    texts = ["the cat sat", ("the dog ran", "cats")]
    (tmp_path / "out").mkdir()
    got = run(tmp_path / "m", tmp_path / "out", lines_of(texts), "--pool=cls")["vectors"]
    sep, cls = tokenizer.sep_token_id, tokenizer.cls_token_id
    for text, ours in zip(texts, got, strict=True):
        parts = [text] if isinstance(text, str) else text
        ids, segments = [], []
        for number, part in enumerate(parts):
            found = [*tokenizer(part, add_special_tokens=False)["input_ids"], sep]
            ids, segments = ids + found, segments + [number] * len(found)
        with torch.no_grad():
            out = model.transformer(
                torch.tensor([[*ids, cls]]), token_type_ids=torch.tensor([[*segments, 2]])
            )
        close(np.squeeze(ours), out.last_hidden_state[0, -1])
