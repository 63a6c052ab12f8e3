import numpy as np
import pytest
from helpers.stores import CLS, FIRST, IDS, PAD, SEP, positions, random_documents, store_of
from helpers.views import packed

from firth.data.views import selection
from firth.errors import FirthError

CORPORA = {
    "usual": random_documents(0, 40),
    "tiny documents": [[1], [2], [1, 1], [3]] * 20,
    "long sentences": [[200, 3, 14, 15, 28], [14], [13, 1, 1, 500], [7] * 30],
    "one document": [[5] * 100],
    "exact fits": [[14], [7, 7], [6, 7], [14, 14], [1]],
}


def plain_rows(documents, length, mode):
    """Rows as the paper describes them, sentence by sentence, in lists."""
    capacity, token = length - 2, FIRST
    stream = []  # (document, sentence of tokens)
    for number, document in enumerate(documents):
        for size in document:
            stream.append((number, list(range(token, token + size))))
            token += size
    if mode == "blocks":
        text = [t for _, sentence in stream for t in sentence]
        rows = [text[n : n + capacity] for n in range(0, len(text), capacity)]
    else:
        rows, row, last = [], [], None
        for number, sentence in stream:
            for begin in range(0, len(sentence), capacity):
                piece = sentence[begin : begin + capacity]
                new_document = row and number != last
                if new_document and mode == "documents":
                    rows.append(row)
                    row = []
                border = [SEP] if row and new_document else []
                if len(row) + len(border) + len(piece) > capacity:
                    rows.append(row)
                    row, border = [], []
                row += border + piece
                last = number
        rows.append(row)
    return [[CLS, *row, SEP] + [PAD] * (capacity - len(row)) for row in rows]


def all_rows(view):
    return np.concatenate([batch["tokens"] for batch in view.sequential(1)])


@pytest.mark.parametrize("mode", ["sentences", "documents", "blocks"])
@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("chunk", [1, 6, 10**6])
def test_rows_are_those_of_the_plain_algorithm(monkeypatch, mode, corpus, chunk):
    monkeypatch.setattr(selection, "CHUNK_SENTENCES", chunk)
    for length in (8, 16, 50):
        view = packed(store_of(CORPORA[corpus]), length, mode=mode, **IDS)
        assert all_rows(view).tolist() == plain_rows(CORPORA[corpus], length, mode)


def test_sentences_across_documents_are_the_default():
    documents = CORPORA["tiny documents"]
    rows = all_rows(packed(store_of(documents), 16, **IDS)).tolist()
    assert rows == plain_rows(documents, 16, "sentences")


@pytest.mark.parametrize("mode", ["sentences", "documents", "blocks"])
def test_every_selected_token_appears_exactly_once_an_epoch(mode):
    documents = random_documents(2, 60, longest=100)
    store = store_of(documents)
    chosen = np.array([0, 1, 5, 20, 21, 22, 59])
    view = packed(store, 32, mode=mode, documents=chosen, **IDS)
    borders = store.sentences[store.documents]
    expected = np.concatenate([np.arange(borders[d], borders[d + 1]) for d in chosen])
    size = view.epoch_size(0)
    for epoch in (0, 1):
        rows = [view.batch(epoch * size + n, 1)["tokens"][0] for n in range(size)]
        assert np.array_equal(np.sort(np.concatenate([*map(positions, rows)])), expected)


def test_fields_describe_the_rows():
    view = packed(store_of(random_documents(3, 30)), 24, **IDS)
    batch = view.batch(0, 16)
    assert np.array_equal(batch["mask"], batch["tokens"] != PAD)
    assert not batch["segments"].any()
    assert np.array_equal(batch["tokens"][:, 0], np.full(16, CLS))
    last = batch["mask"].sum(1) - 1
    assert np.array_equal(batch["tokens"][np.arange(16), last], np.full(16, SEP))
    assert batch["example"].tolist() == [
        all_rows(view).tolist().index(row) for row in batch["tokens"].tolist()
    ]


def test_copy_counts_epochs_up_to_the_dupe_factor():
    store = store_of([[20] * 4])
    for dupe_factor, copies in ((0, [0, 1, 2, 3]), (3, [0, 1, 2, 0])):
        view = packed(store, 22, dupe_factor=dupe_factor, **IDS)
        assert [view.batch(epoch, 4)["copy"].tolist() for epoch in range(4)] == [
            [copy] * 4 for copy in copies
        ]


def test_unknown_mode_is_refused():
    with pytest.raises(FirthError, match=r"unknown packing mode 'full'.*sentences, documents"):
        packed(store_of([[5]]), 16, mode="full", **IDS)
