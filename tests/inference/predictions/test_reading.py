"""How token ids become rows: every token is read, and where windows begin."""

import itertools

import numpy as np
import pytest

from firth.errors import FirthError
from firth.inference.predictions.reading import Reading
from firth.tokenizers.special_tokens import Template

BERT = Template((1,), (2,), (2,), pad=0)
ROBERTA = Template((1,), (2, 2), (2,), pad=0)
XLNET = Template((), (2,), (2, 1), pad=0, last_segment=2)


def ids(first, count):
    return np.arange(first, first + count, dtype=np.int32)


def rows_of(template, ids, limit, **options):
    rows, lost = Reading(**options).rows(template, ids, limit)
    return [(row.tolist(), second) for row, second in rows], lost


def test_a_row_of_each_kind():
    assert rows_of(BERT, [ids(5, 2)], 9) == ([([1, 5, 6, 2], 4)], False)
    assert rows_of(ROBERTA, [ids(5, 2), ids(8, 1)], 9) == ([([1, 5, 6, 2, 2, 8, 2], 5)], False)
    assert rows_of(XLNET, [ids(5, 1), ids(8, 0)], 9) == ([([5, 2, 2, 1], 2)], False)
    assert rows_of(BERT, [ids(5, 9), ids(20, 2)], 8) == ([([1, 5, 6, 7, 2, 20, 21, 2], 5)], True)


def test_where_windows_begin():
    rows, lost = rows_of(BERT, [ids(5, 10)], 6, long="average", stride=3)
    assert not lost and [row[1] for row, _ in rows] == [5, 8, 11]  # the last one ends with the text
    assert all(len(row) == 6 and second == 6 for row, second in rows)
    rows, _ = rows_of(BERT, [ids(5, 13)], 6, long="average", stride=99)
    assert [row[1] for row, _ in rows] == [5, 9, 13, 14]  # at most a window apart
    rows, _ = rows_of(BERT, [ids(5, 9)], 6, long="average")
    assert [row[1] for row, _ in rows] == [5, 7, 9, 10]  # half a window of 4


@pytest.mark.parametrize("template", [BERT, ROBERTA, XLNET])
def test_every_token_is_read(template):
    """All sizes of two texts: rows of at most the limit, and every token of the longer text."""
    for a, b, limit in itertools.product(range(0, 14), range(0, 14), (8, 9, 11)):
        texts = [ids(100, a), ids(200, b)]
        for stride in (None, 1, 4):
            options = dict(long="average", stride=stride)
            rows, lost = Reading(**options).rows(template, texts, limit)
            read = set(np.concatenate([row for row, _ in rows]).tolist())
            missing = {*texts[0].tolist(), *texts[1].tolist()} - read
            assert bool(missing) == lost, (a, b, limit, stride)
            assert max(len(row) for row, _ in rows) <= limit
            room = limit - template.size(2)
            if min(a, b) <= room // 2:
                assert not missing
            else:
                assert len(missing) == min(a, b) - room // 2  # of the shorter one
            for row, second in rows:
                before = row[: second - len(template.between)]
                assert all(token < 200 for token in before) and all(row[second:] < 100 * 3)
                assert all(token < 100 or token >= 200 for token in row[second:])


def test_options_out_of_range():
    for name in ("batch_size", "max_length", "stride"):
        with pytest.raises(FirthError, match=f"{name}=0: expected a positive number"):
            Reading(long="average", **{name: 0})
