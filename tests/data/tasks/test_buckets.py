import logging
from importlib import import_module

import numpy as np
import pytest

from firth.data.tasks.buckets import NO_EXAMPLE, Buckets, Tokenised, tokenise
from firth.data.tasks.load import load_split
from firth.data.tasks.task import GLUE, Examples
from firth.errors import FirthError

PAD, CLS, SEP, START, DELIMITER, EXTRACT = 7, 101, 102, 103, 104, 105


class Letters:
    """A tokenizer for tests: every character is a token, 1000 + its code."""

    pad_id, cls_id, sep_id = PAD, CLS, SEP

    def id(self, token):
        return {"_start_": START, "_delimiter_": DELIMITER, "_classify_": EXTRACT}[token]

    def encode_flat(self, texts):
        ids = [1000 + ord(c) for text in texts for c in text]
        return np.array(ids, np.int32), np.array([len(text) for text in texts], np.int64)


def ids_of(letters):
    return [1000 + ord(letter) for letter in letters]


def examples_of(texts_a, texts_b=None, labels=None):
    rows = np.arange(len(texts_a))
    return Examples(None, "made", texts_a, texts_b, labels, rows)


def reference_row(a, b, length):
    """(tokens, segments) by the loop of the BERT code (run_classifier.py, _truncate_seq_pair)."""
    a, b = list(a), None if b is None else list(b)
    if b is None:
        a = a[: length - 2]
    else:
        while len(a) + len(b) > length - 3:
            (a if len(a) > len(b) else b).pop()
    second = [] if b is None else [*b, SEP]
    return [CLS, *a, SEP, *second], [0] * (len(a) + 2) + [1] * len(second)


def random_texts(random, count, longest, first="a"):
    """Texts whose n-th letter tells that it is the n-th, and by `first` whose text it is of."""
    sizes = random.integers(0, longest, count)
    return ["".join(chr(ord(first) + n) for n in range(size)) for size in sizes]


def made(count=203, length=64, seed=0, labels=np.int32, longest=90):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, longest, count)
    texts = ["".join(map(chr, random.integers(97, 123, n))) for n in sizes]
    labels = None if labels is None else random.integers(0, 3, count).astype(labels)
    return tokenise(examples_of(texts, None, labels), Letters(), length)


@pytest.mark.parametrize("length", [5, 6, 16, 17, 100])
def test_tokenise_pairs_as_the_bert_code(length):
    random = np.random.default_rng(length)
    letters = Letters()
    a, b = random_texts(random, 300, 30), random_texts(random, 300, 30, "\u0400")
    got = tokenise(examples_of(a, b), letters, length)
    cut = 0
    for i, pair in enumerate(zip(a, b, strict=True)):
        ids = [letters.encode_flat([text])[0].tolist() for text in pair]
        tokens, segments = reference_row(*ids, length)
        begin, end = got.offsets[i], got.offsets[i + 1]
        assert got.tokens[begin:end].tolist() == tokens
        assert got.second[i] == segments.count(0)
        cut += len(tokens) < len(ids[0]) + len(ids[1]) + 3
    assert got.truncated == cut
    assert got.offsets[-1] == len(got.tokens) and got.tokens.dtype == np.int32


def test_a_pair_may_have_two_separators_between_its_texts():
    examples = examples_of(["abcd", "b"], ["ef", "ghijklmnop"])
    got = tokenise(examples, Letters(), 10, roles=(("cls",), ("sep", "sep"), ("sep",)))
    rows = np.split(got.tokens, got.offsets[1:-1])
    assert rows[0].tolist() == [CLS, *ids_of("abcd"), SEP, SEP, *ids_of("ef"), SEP]
    assert rows[1].tolist() == [CLS, *ids_of("b"), SEP, SEP, *ids_of("ghijk"), SEP]
    assert got.second.tolist() == [7, 4]


TEMPLATES = {  # family -> what stands before, between and after the texts, and the last segment
    "bert": ([CLS], [SEP], [SEP], None),
    "roberta": ([CLS], [SEP, SEP], [SEP], None),
    "xlnet": ([], [SEP], [SEP, CLS], 2),
    "gpt": ([START], [DELIMITER], [EXTRACT], None),
    "transformer_xl": ([START], [DELIMITER], [EXTRACT], None),
}


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("length", [6, 9, 14, 40])
def test_every_family_keeps_the_beginning_of_its_texts(family, length):
    """Pairs lose the end of the longer text; segments are 0, 1 and XLNet's 2 for <cls>."""
    before, between, after, last = TEMPLATES[family]
    roles = import_module(f"firth.models.{family}").SPECIAL_TOKENS
    random = np.random.default_rng(length)
    a, b = random_texts(random, 60, 20), random_texts(random, 60, 20, "\u0400")
    for second in (None, b):
        view = Buckets(tokenise(examples_of(a, second), Letters(), length, roles), seed=1)
        seen = 0
        for batch in view.sequential(16):
            for row in np.flatnonzero(batch["weight"]):
                number, mask = batch["example"][row], batch["mask"][row]
                kept = list(a[number]), list(second[number]) if second else []
                special = len(before) + len(after) + (len(between) if second else 0)
                while len(kept[0]) + len(kept[1]) > length - special:
                    kept[len(kept[0]) <= len(kept[1])].pop()
                tail = [*ids_of(kept[1]), *after] if second else after
                head = [*before, *ids_of(kept[0]), *(between if second else [])]
                segments = [0] * len(head) + [1 if second else 0] * len(tail)
                if last is not None:
                    segments[-1] = last
                assert batch["tokens"][row][mask].tolist() == [*head, *tail]
                assert batch["segments"][row][mask].tolist() == segments
                seen += 1
        assert seen == 60


def test_tokenise_single_texts_across_chunks(monkeypatch):
    monkeypatch.setattr("firth.data.tasks.buckets.CHUNK_TEXTS", 7)
    texts = random_texts(np.random.default_rng(0), 50, 20)
    got = tokenise(examples_of(texts), Letters(), 12)
    for i, text in enumerate(texts):
        tokens, _ = reference_row([1000 + ord(c) for c in text], None, 12)
        assert got.tokens[got.offsets[i] : got.offsets[i + 1]].tolist() == tokens
        assert got.second[i] == len(tokens)


def test_texts_without_a_token_are_counted(monkeypatch, caplog):
    monkeypatch.setattr("firth.data.tasks.buckets.CHUNK_TEXTS", 2)
    with caplog.at_level(logging.INFO):
        tokenise(examples_of(["a", "b", "c"], ["d", "e", "f"]), Letters(), 9)
        assert not caplog.messages
        tokenise(examples_of(["a", "b", "", "c", ""], ["d", "e", "f", "", ""]), Letters(), 9)
        tokenise(examples_of(["a", ""]), Letters(), 9)
    assert caplog.messages == [
        "made: no token in a text of 3 of 5 rows, first row 2",
        "made: no token in a text of 1 of 2 rows, first row 1",
    ]


def test_tokenise_equals_transformers(shared_data):
    """Real pairs; at a length where nothing is cut, since transformers breaks ties otherwise."""
    import transformers

    from firth.tokenizers.load import load_tokenizer

    vocab = shared_data("vocabs/bert-base-uncased-vocab.txt")
    examples = load_split(GLUE["rte"], "dev", shared_data("glue"))
    got = Buckets(tokenise(examples, load_tokenizer(vocab), 512), seed=1)
    theirs = transformers.BertTokenizer(str(vocab), do_lower_case=True)(
        examples.texts_a, examples.texts_b
    )
    for batch in got.sequential(16):
        real = batch["weight"] > 0
        for i, tokens, segments, mask in zip(
            *(batch[k][real] for k in ("example", "tokens", "segments", "mask")), strict=True
        ):
            assert tokens[mask].tolist() == theirs["input_ids"][i]
            assert segments[mask].tolist() == theirs["token_type_ids"][i]


def test_tokenise_refuses():
    letters = Letters()
    with pytest.raises(FirthError, match="at least 5 for 2"):
        tokenise(examples_of(["a"], ["b"]), letters, 4)
    letters.cls_id = None
    with pytest.raises(FirthError, match=r"no \[CLS\]"):
        tokenise(examples_of(["a"]), letters, 16)


def epoch_batches(view, batch_size, epoch=0, **options):
    steps = view.steps_per_epoch(batch_size)
    return [view.batch(epoch * steps + i, batch_size, **options) for i in range(steps)]


@pytest.mark.parametrize(("count", "batch_size"), [(203, 8), (64, 16), (5, 32), (1, 1), (33, 32)])
def test_every_example_exactly_once_an_epoch_with_its_own_content(count, batch_size):
    tokenised = made(count)
    view = Buckets(tokenised, seed=3)
    for epoch in range(3):
        seen = []
        for batch in epoch_batches(view, batch_size, epoch):
            assert batch["tokens"].shape == batch["segments"].shape == batch["mask"].shape
            assert batch["tokens"].shape[0] == batch_size
            assert (batch["copy"] == epoch).all()
            for row in range(batch_size):
                tokens, mask = batch["tokens"][row], batch["mask"][row]
                number = batch["example"][row]
                if batch["weight"][row] == 0:
                    assert number == NO_EXAMPLE and not mask.any()
                    assert (tokens == PAD).all() and batch["labels"][row] == 0
                    continue
                seen.append(number)
                span = slice(tokenised.offsets[number], tokenised.offsets[number + 1])
                assert tokens[mask].tolist() == tokenised.tokens[span].tolist()
                assert (tokens[~mask] == PAD).all()
                assert mask[: mask.sum()].all()  # the real tokens come first
                assert batch["labels"][row] == tokenised.labels[number]
        assert sorted(seen) == list(range(count))


def test_fields_have_the_promised_types():
    for labels in (np.int32, np.float32):
        batch = Buckets(made(labels=labels)).batch(0, 4)
        assert {name: array.dtype for name, array in batch.items()} == {
            "tokens": np.int32,
            "segments": np.int32,
            "mask": np.bool_,
            "labels": labels,
            "weight": np.float32,
            "example": np.uint32,
            "copy": np.uint32,
        }
    assert "labels" not in Buckets(made(labels=None)).batch(0, 4)


def test_segments_begin_at_the_second_text():
    tokenised = tokenise(examples_of(["aa", "bbbb"], ["c", ""]), Letters(), 32)
    batch = Buckets(tokenised, lengths=(8,)).batch(0, 2)
    rows = np.argsort(batch["example"])
    assert batch["tokens"].shape == (2, 8)
    assert batch["segments"][rows].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0] * 6 + [1, 0]]


def test_batch_is_pure():
    tokenised = made()
    view, fresh = Buckets(tokenised, seed=5), Buckets(tokenised, seed=5)
    steps = list(range(3 * view.steps_per_epoch(8)))
    straight = [view.batch(step, 8) for step in steps]
    for step in np.random.default_rng(0).permutation(steps):  # numpy integers, any order
        again = fresh.batch(step, 8)
        assert all(np.array_equal(again[k], straight[step][k]) for k in again)


def test_epochs_and_seeds_have_different_orders():
    tokenised = made()

    def order(seed, epoch):
        view = Buckets(tokenised, seed=seed)
        return np.concatenate([b["example"] for b in epoch_batches(view, 8, epoch)]).tolist()

    orders = [order(0, 0), order(0, 1), order(1, 0)]
    assert len({tuple(o) for o in orders}) == 3
    view = Buckets(tokenised)  # batches are shuffled, too: lengths come in orders of their own
    lengths = [[b["tokens"].shape[1] for b in epoch_batches(view, 8, epoch)] for epoch in (0, 1)]
    assert sorted(lengths[0]) == sorted(lengths[1]) != lengths[0] != lengths[1]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_slices_add_up_to_the_whole_batch(count):
    view = Buckets(made(), seed=2)

    def joined(parts):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    for step in range(view.steps_per_epoch(8)):
        whole = view.batch(step, 8)
        parts = joined([view.batch(step, 8, i, count) for i in range(count)])
        assert all(np.array_equal(whole[k], parts[k]) for k in whole)
    slices = [list(view.sequential(8, i, count)) for i in range(count)]
    for whole, *parts in zip(view.sequential(8), *slices, strict=True):
        parts = joined(parts)
        assert all(np.array_equal(whole[k], parts[k]) for k in whole)


def test_steps_and_shapes_are_those_of_every_epoch():
    view = Buckets(made(203, length=100, longest=110), lengths=(16, 32, 64, 512))
    assert view.lengths.tolist() == [16, 32, 64, 100]
    assert view.steps_per_epoch(8) == 26  # ceil(203 / 8)
    per_epoch = [
        sorted(batch["tokens"].shape[1] for batch in epoch_batches(view, 8, epoch))
        for epoch in range(4)
    ]
    assert all(lengths == per_epoch[0] for lengths in per_epoch)
    assert view.shapes(8) == sorted(set(per_epoch[0])) == [16, 32, 64, 100]
    sequential = [batch["tokens"].shape[1] for batch in view.sequential(8)]
    assert sequential == sorted(sequential)
    assert view.shapes(8, sequential=True) == sorted(set(sequential))


def test_one_padded_batch_an_epoch_and_none_where_it_divides():
    for count, expected in ((203, 1), (200, 0)):
        batches = epoch_batches(Buckets(made(count)), 8)
        assert sum((batch["weight"] == 0).any() for batch in batches) == expected


def test_only_what_does_not_fill_a_batch_moves_to_a_larger_bucket():
    sizes = [10] * 19 + [20] * 3 + [50] * 12
    tokenised = tokenise(examples_of(["x" * (n - 2) for n in sizes]), Letters(), 512)
    view = Buckets(tokenised, lengths=(16, 32, 64))
    for epoch in range(5):
        found = []
        for batch in epoch_batches(view, 8, epoch):
            length, real = batch["tokens"].shape[1], batch["mask"].sum(axis=1)
            found.append((length, *np.bincount(real, minlength=51)[[10, 20, 50]].tolist()))
        # 19 = 2 x 8 + 3; 3 + 3 do not fill a batch of 32; 6 + 12 = 2 x 8 + 2. Never longer than 64.
        assert sorted(length for length, *_ in found) == [16, 16, 64, 64, 64]
        assert [row for row in found if row[0] == 16] == [(16, 8, 0, 0)] * 2
        assert np.sum(found, axis=0)[1:].tolist() == [19, 3, 12]
    assert view.shapes(8) == [16, 64]


def test_promotion_draws_other_examples_each_epoch():
    view = Buckets(tokenise(examples_of(["x"] * 17 + ["y" * 30] * 7), Letters(), 64))
    promoted = {
        number
        for epoch in range(40)
        for batch in epoch_batches(view, 8, epoch)
        for number, size in zip(batch["example"], batch["mask"].sum(axis=1), strict=True)
        if batch["tokens"].shape[1] == 32 and size == 3
    }
    assert len(promoted) > 10


def test_sequential_restores_the_order():
    tokenised = made(203)
    view = Buckets(tokenised)
    sizes = np.full(203, -1)
    weights = 0.0
    for batch in view.sequential(8):
        real = batch["weight"] > 0
        sizes[batch["example"][real]] = batch["mask"][real].sum(axis=1)
        weights += batch["weight"].sum()
        assert batch["tokens"].shape[1] in view.lengths
    assert weights == 203 and sizes.tolist() == np.diff(tokenised.offsets).tolist()


@pytest.mark.parametrize("sequential", [False, True])
def test_pad_fraction(sequential):
    view = Buckets(made(203))
    batches = list(view.sequential(8)) if sequential else epoch_batches(view, 8)
    real = sum(batch["mask"].sum() for batch in batches)
    positions = sum(batch["mask"].size for batch in batches)
    assert view.pad_fraction(8, sequential) == pytest.approx(1 - real / positions)


def test_real_sst2_little_padding(shared_data):
    from firth.tokenizers.load import load_tokenizer

    tokenizer = load_tokenizer(shared_data("vocabs/bert-base-uncased-vocab.txt"))
    tokenised = tokenise(load_split(GLUE["sst2"], "train", shared_data("glue")), tokenizer, 128)
    view = Buckets(tokenised)
    numbers = np.concatenate([batch["example"] for batch in epoch_batches(view, 32)])
    assert np.array_equal(np.sort(numbers[numbers != NO_EXAMPLE]), np.arange(67349))
    assert view.steps_per_epoch(32) == 2105
    unbucketed = 1 - len(tokenised.tokens) / (2105 * 32 * 128)
    assert unbucketed > 0.85 and view.pad_fraction(32) < 0.45


@pytest.mark.parametrize(
    "bad", [{"batch_size": 0}, {"batch_size": 6, "count": 4}, {"batch_size": 8, "index": 1}]
)
def test_bad_slices_are_refused(bad):
    view = Buckets(made(20))
    for call in (lambda: view.batch(0, **bad), lambda: view.sequential(**bad)):
        with pytest.raises(FirthError, match="slice"):
            call()


def test_bad_input_is_refused():
    tokenised = made(20)
    with pytest.raises(FirthError, match="step -1"):
        Buckets(tokenised).batch(-1, 8)
    with pytest.raises(FirthError, match="positive"):
        Buckets(tokenised, lengths=(0, 32))
    none = np.zeros(0, np.int32)
    with pytest.raises(FirthError, match="no examples"):
        Buckets(Tokenised(none, np.zeros(1, np.int64), none, none, 8, 0, 0))
