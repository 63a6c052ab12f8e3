"""`encoder.fill` and `firth fill` against transformers on the same texts."""

import json
import re

import numpy as np
import pytest
from helpers.published.bert import WORDS, add_tokenizer, make_bert

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference import fill

TEXTS = [
    "the [MASK] sat on the mat .",
    ("the dog ran", "cats, [MASK] and a fish sat on mats ."),
    "[MASK]",
    "a [MASK] [MASK] ran and the [MASK]",
    ("[MASK] ate", "the fish ate [MASK]."),
]


# WORDS names "##s" twice: the vocabulary has a hole at the first, and 71 tokens in 72 rows.
KNOWN = [number for number, word in enumerate(WORDS) if word not in WORDS[number + 1 :]]


@pytest.fixture(scope="module")
def made(torch, tmp_path_factory):
    """(directory, transformers model, transformers tokenizer, encoder)."""
    directory = tmp_path_factory.mktemp("made") / "m"
    model = make_bert(directory, "BertForMaskedLM", num_hidden_layers=2, vocab_size=len(WORDS))
    tokenizer = add_tokenizer(directory)
    return directory, model, tokenizer, firth.load(directory)


@pytest.fixture(scope="module")
def bytelevel(torch, tokenizer, tmp_path_factory):
    """A directory whose tokenizer is byte-level BPE, with RoBERTa's special tokens."""
    directory = tmp_path_factory.mktemp("made") / "b"
    make_bert(directory, "BertForMaskedLM", vocab_size=tokenizer.vocab_size)
    tokenizer.save(directory)
    return directory


def expect(torch, model, tokenizer, text, allowed=None):
    """transformers on one text or pair, so without padding: [(position, probabilities [V])]."""
    pair = (text,) if isinstance(text, str) else text
    batch = tokenizer(*pair, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits[0]
    if allowed is not None:
        logits = logits[:, allowed]
    positions = (batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    return [(position, logits[position].softmax(0)) for position in positions]


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def numbers(filled):
    return [[(c.id, c.probability) for c in one.choices] for one in filled]


def test_texts_and_pairs_equal_transformers(torch, made, monkeypatch):
    _, model, tokenizer, encoder = made
    monkeypatch.setattr(fill, "BATCH_SIZE", 4)  # two batches, of 6 and 2 masks,
    monkeypatch.setattr(fill, "MASKS_AT_ONCE", 2)  # and many passes through the head
    got = encoder.fill(TEXTS, top=9)
    expected = [
        (row, position, probabilities)
        for row, text in enumerate(TEXTS)
        for position, probabilities in expect(torch, model, tokenizer, text)
    ]
    assert len(got) == len(expected) == 8
    for ours, (row, position, probabilities) in zip(got, expected, strict=True):
        assert (ours.row, ours.position) == (row, position)
        values, order = probabilities[KNOWN].topk(9)
        ids = [KNOWN[n] for n in order]
        assert [c.id for c in ours.choices] == ids
        assert [c.token for c in ours.choices] == tokenizer.convert_ids_to_tokens(ids)
        close([c.probability for c in ours.choices], values)


def test_choices_equal_the_pipeline(torch, made):
    import transformers

    _, model, tokenizer, encoder = made
    pipeline = transformers.FillMaskPipeline(model=model, tokenizer=tokenizer, device="cpu")
    text = "the [MASK] sat on the mat"
    (got,) = encoder.fill(text, top=len(KNOWN))
    theirs = [t for t in pipeline(text, top_k=len(WORDS)) if t["token"] in KNOWN]
    assert [c.id for c in got.choices] == [t["token"] for t in theirs]
    close([c.probability for c in got.choices], [t["score"] for t in theirs])
    for choice, their in zip(got.choices, theirs, strict=True):
        if choice.id not in tokenizer.all_special_ids:  # which the pipeline leaves out
            assert choice.text == their["sequence"]


def test_one_text_a_pair_and_a_list(made):
    encoder = made[-1]
    (one,) = encoder.fill("the [MASK] sat")
    assert len(one.choices) == 5 and (one.row, one.position) == (0, 2)
    assert encoder.fill(["the [MASK] sat"]) == [one]
    (pair,) = encoder.fill(("the dog", "[MASK] sat"))
    assert pair.position == 4
    token = pair.choices[0].token.removeprefix("##")
    assert pair.choices[0].text == ("the dog", f"{token} sat")


def test_neighbours_change_nothing(made):
    encoder = made[-1]
    alone = [one for text in TEXTS for one in encoder.fill([text], top=20)]
    together = encoder.fill([*TEXTS, "the [MASK] " + "cat " * 30], top=20)
    for ours, theirs in zip(numbers(together), numbers(alone), strict=False):
        assert [number for number, _ in ours] == [number for number, _ in theirs]
        close([p for _, p in ours], [p for _, p in theirs])


def test_only_masks_pass_the_head_and_few_shapes_are_compiled(made, monkeypatch):
    encoder = firth.load(made[0])
    seen = []
    head = type(encoder.model).mlm

    def watch(self, hidden_BMD):
        seen.append(hidden_BMD.shape[:2])
        return head(self, hidden_BMD)

    monkeypatch.setattr(type(encoder.model), "mlm", watch)
    fill._choose.clear_cache()
    for words in range(1, 13):  # 4 to 15 tokens: the bucket 16
        encoder.fill("[MASK] " + "cat " * words, top=3)
    assert seen == [(1, 1)]
    encoder.fill(["[MASK] [MASK] cat", "cat [MASK]"], top=3)
    assert seen == [(1, 1), (1, 4)]


def test_targets_share_the_probability(torch, made):
    _, model, tokenizer, encoder = made
    words = ["fish", "dog", "##s", "cat", "Ate"]  # lowercased as text is
    allowed = tokenizer.convert_tokens_to_ids([w.lower() for w in words])
    for text in TEXTS:
        got = encoder.fill([text], targets=words)
        theirs = expect(torch, model, tokenizer, text, allowed)
        for ours, (_, probabilities) in zip(got, theirs, strict=True):
            values, order = probabilities.topk(5)
            assert [c.id for c in ours.choices] == [allowed[n] for n in order.tolist()]
            close([c.probability for c in ours.choices], values)
    (two,) = encoder.fill("[MASK]", top=2, targets=words)
    (three,) = encoder.fill("[MASK]", top=9, targets=words[:3])
    assert len(two.choices) == 2 and len(three.choices) == 3
    assert sum(c.probability for c in three.choices) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("The [MASK] Sat.", "cat", "The cat Sat."),
        ('"([MASK])" sat', "cat", '"(cat)" sat'),
        ("The cat [MASK] sat", "##s", "The cats sat"),
        ("The cat  [MASK]", ".", "The cat."),
        ("[MASK] sat", "##s", "s sat"),
        ("É [MASK] ran", "cat", "É cat ran"),
        ("[MASK] [MASK]", "cat", "cat [MASK]"),
        ("[MASK]", "[SEP]", "[SEP]"),
    ],
)
def test_the_token_is_put_into_the_text(made, text, target, expected):
    assert made[-1].fill(text, targets=[target])[0].choices[0].text == expected


@pytest.mark.parametrize(
    ("text", "target", "token", "expected"),
    [
        ("the <mask> sat", "cat", "Ġcat", "the cat sat"),
        ("the [MASK] sat", "cat", "Ġcat", "the cat sat"),
        ("<mask> sat", "cat", "Ġcat", "cat sat"),
        ("the cat <mask>", "Ġ.", "Ġ.", "the cat ."),
        ("the cat <mask>", "e", "e", "the cate"),
    ],
)
def test_bytelevel_masks_and_words(bytelevel, text, target, token, expected):
    (got,) = firth.load(bytelevel).fill(text, targets=[target])
    (choice,) = got.choices
    assert (choice.token, choice.text) == (token, expected)
    assert choice.probability == pytest.approx(1)


def test_rows_without_a_token_are_never_chosen(torch, tmp_path):
    """A table of 97 rows: all share the probability, but only 71 have a token."""
    model = make_bert(tmp_path / "m", "BertForMaskedLM")
    tokenizer = add_tokenizer(tmp_path / "m")
    encoder = firth.load(tmp_path / "m")
    (got,) = encoder.fill("the [MASK] sat", top=len(KNOWN))
    ((_, probabilities),) = expect(torch, model, tokenizer, "the [MASK] sat")
    values, order = probabilities[KNOWN].topk(len(KNOWN))
    assert [c.id for c in got.choices] == [KNOWN[n] for n in order]
    close([c.probability for c in got.choices], values)
    assert values.sum() < 0.99
    with pytest.raises(FirthError, match=r"top=72 is outside 1 \.\. 71, the size of the voc"):
        encoder.fill("the [MASK] sat", top=len(KNOWN) + 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.fill("the cat"), r"text 0 has no mask; .* it is written \[MASK\]$"),
        (lambda e: e.fill(["[MASK]", ("a", "b")]), "text 1 has no mask"),
        (lambda e: e.fill("a <mask>"), "text 0 has no mask"),
        (lambda e: e.fill(["[MASK]", "[MASK] " * 40]), "text 1 has 42 tokens .* 40 positions"),
        (lambda e: e.fill([]), "expected a list of texts"),
        (lambda e: e.fill(["[MASK]", 3]), "text 1 is 3, expected a string or two of them"),
        (lambda e: e.fill(("[MASK]", "b", "c")), "text 0 is "),
        (lambda e: e.fill("[MASK]", top=0), r"top=0 is outside 1 \.\. 71"),
        (lambda e: e.fill("[MASK]", top=72, targets=["cat"]), "top=72 is outside"),
        (
            lambda e: e.fill("[MASK]", targets=["cat", "dogs"]),
            "target 'dogs' is not one token of this model; its pieces are dog ##s$",
        ),
        (lambda e: e.fill("[MASK]", targets=["é!"]), r"target 'é!' .* pieces are e \[UNK\]$"),
        (lambda e: e.fill("[MASK]", targets=["!"]), r"target '!' .* pieces are \[UNK\]$"),
        (lambda e: e.fill("[MASK]", targets=[""]), "target '' .* pieces are none$"),
        (
            lambda e: e.fill("[MASK]", targets=["Cat", "cat"]),
            "targets 'Cat' and 'cat' are the same token, 'cat'",
        ),
        (lambda e: e.fill("[MASK]", targets="cat"), "targets='cat': expected a list of words"),
        (lambda e: e.fill("[MASK]", targets=[]), r"targets=\[\]: expected a list of words"),
    ],
)
def test_bad_calls_are_named(made, call, message):
    with pytest.raises(FirthError, match=message):
        call(made[-1])


def test_the_mask_is_named_as_the_model_spells_it(bytelevel):
    with pytest.raises(FirthError, match=r"text 0 has no mask; .* written \[MASK\] or <mask>$"):
        firth.load(bytelevel).fill("the cat")


def test_models_that_cannot_fill_are_refused(made, torch, tmp_path):
    with pytest.raises(FirthError, match="was loaded without its head 'mlm'"):
        firth.load(made[0], heads=False).fill("[MASK]")
    make_bert(tmp_path / "bare", "BertForMaskedLM")
    with pytest.raises(FirthError, match="bare holds no tokenizer"):
        firth.load(tmp_path / "bare").fill("[MASK]")
    make_bert(tmp_path / "headless", "BertModel")
    add_tokenizer(tmp_path / "headless")
    with pytest.raises(FirthError, match="headless has no masked-LM head"):
        firth.load(tmp_path / "headless").fill("[MASK]")
    maskless = firth.load(made[0])
    maskless.tokenizer.mask_id = None
    with pytest.raises(FirthError, match=r"the tokenizer in .* has no mask token"):
        maskless.fill("[MASK]")


# --------------------------------------------------------------------------------- the command


def test_the_command_lists_words(made, printed):
    directory, *_, encoder = made
    texts = ["The [MASK] sat.", "a [MASK] [MASK]"]
    shown = printed("fill", "--model", directory, texts[0], "--top=3", texts[1])
    blocks = [block.splitlines() for block in shown.rstrip("\n").split("\n\n")]
    got = encoder.fill(texts, top=3)
    assert len(blocks) == len(got) == 3
    for block, one in zip(blocks, got, strict=True):
        width = max(len(choice.token) for choice in one.choices)
        assert block == [
            f"{choice.probability:.3f}  {choice.token.ljust(width)}  {choice.text}"
            for choice in one.choices
        ]


def test_the_command_prints_json_and_reads_files(made, tmp_path, printed, stdin, monkeypatch):
    directory, *_, encoder = made
    monkeypatch.setattr("firth.commands.fill.BATCH_SIZE", 2)  # rows are counted across windows
    content = "".join((t if isinstance(t, str) else "\t".join(t)) + "\n" for t in TEXTS)
    (tmp_path / "in.txt").write_text(content)
    options = ("--model", directory, "--json", "--top=2", "--targets=cat, dog,fish")
    shown = printed("fill", *options, "--input", tmp_path / "in.txt")
    expected = encoder.fill(TEXTS, top=2, targets=["cat", "dog", "fish"])
    entries = [json.loads(line) for line in shown.splitlines()]
    assert len(entries) == len(expected)
    for entry, one in zip(entries, expected, strict=True):
        given = TEXTS[one.row]
        assert entry["text"] == (given if isinstance(given, str) else list(given))
        assert (entry["row"], entry["position"]) == (one.row, one.position)
        for choice, wanted in zip(entry["choices"], one.choices, strict=True):
            assert list(choice) == ["token", "id", "probability", "text"]
            assert (choice["token"], choice["id"]) == (wanted.token, wanted.id)
            close(choice["probability"], wanted.probability)

    stdin(content.encode())
    assert printed("fill", *options, "--input", "-") == shown
    given = [t if isinstance(t, str) else "\t".join(t) for t in TEXTS]
    assert printed("fill", *options, *given) == shown


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (b"", (), r"in\.txt is empty; expected one text a line"),
        (b"[MASK]\n\n", (), r"in\.txt:2 has no mask; for this model it is written \[MASK\]"),
        (b"[MASK]\n" + b"[MASK] " * 50, (), r"in\.txt:2 has 52 tokens .* has 40 positions"),
        (b"[MASK]\tb\tc\n", (), r"in\.txt:1: 3 texts between tabs, expected one or two"),
        (b"[MASK] sm\xf8r\n", (), r"in\.txt:1: not UTF-8 at byte 9 .*errors=replace"),
        (b"[MASK]\n", ("--top=72",), r"top=72 is outside 1 \.\. 71"),
        (b"[MASK]\n", ("--targets=cat,dogs",), "target 'dogs' .* pieces are dog ##s"),
        (b"[MASK]\n", ("--targets=",), "expected a list of words"),
        (b"[MASK]\n", ("--model=gone",), "gone does not exist"),
        (b"[MASK]\n", ("--input=gone",), "cannot read gone: No such file"),
        (b"[MASK]\n", ("[MASK]",), "give either texts or --input"),
        (None, (), "give either texts or --input"),
        (None, ("the cat",), "'the cat' has no mask"),
        (None, ("the cat " * 9,), r"'the cat the cat .*\.\.\.' has no mask"),
        (None, ("[MASK]\tb\tc",), "3 texts between tabs"),
        (None, ("[MASK] \udce9",), "is not UTF-8"),
    ],
)
def test_bad_input_is_named_and_nothing_is_printed(made, tmp_path, capsys, text, options, message):
    source = tmp_path / "in.txt"
    if text is not None:
        source.write_bytes(text)
        options = ("--input", str(source), *options)
    assert cli.main(["fill", "--model", str(made[0]), *options]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(f"firth fill: error: .*{message}.*\n", printed.err) and not printed.out


def test_a_headless_model_is_refused_by_the_command(torch, tmp_path, capsys):
    make_bert(tmp_path / "m", "BertModel")
    assert cli.main(["fill", "--model", str(tmp_path / "m"), "[MASK]"]) == 2
    assert re.search("error: .* has no .*'mlm'", capsys.readouterr().err)


def test_probabilities_are_float32_whatever_the_computation_is(made):
    text, encoder = "the [MASK] sat", firth.load(made[0], dtype="bfloat16")
    (half,) = encoder.fill(text, targets=["cat", "dog", "fish"])
    (whole,) = made[-1].fill(text, targets=["cat", "dog", "fish"])
    assert sum(c.probability for c in half.choices) == pytest.approx(1, abs=1e-6)
    found = {c.token: c.probability for c in half.choices}
    difference = max(abs(found[c.token] - c.probability) for c in whole.choices)
    assert 1e-6 < difference < 0.2
