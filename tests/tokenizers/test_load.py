"""Tokenizers as their files say, and what is said of files and requests that are bad."""

import json

import pytest
from helpers.texts import SENTENCES

from firth.errors import FirthError
from firth.tokenizers.load import load_tokenizer, train_tokenizer


def test_config_beside_a_vocabulary_decides_casing(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nvase\nVase\n##s\nvasé\n", encoding="utf-8")

    def tokens(**options):
        tokenizer = load_tokenizer(tmp_path, **options)
        return [tokenizer.token(n) for n in tokenizer.encode(["Vase vasés"])[0].ids]

    assert tokens() == ["Vase", "vasé", "##s"]  # a capital in the vocabulary: cased
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert tokens() == ["vase", "vase", "##s"]
    assert tokens(strip_accents=False) == ["vase", "vasé", "##s"]
    assert tokens(lowercase=False) == ["Vase", "vasé", "##s"]
    digests = {
        load_tokenizer(tmp_path, lowercase=low, strip_accents=strip).digest
        for low in (True, False)
        for strip in (True, False)
    }
    assert len(digests) == 4


def test_truncation_and_padding_of_published_files_are_dropped(shared_data, tmp_path):
    tokenizer = load_tokenizer(shared_data("vocabs/bert-base-uncased-vocab.txt"))
    tokenizer.save(tmp_path)
    state = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    state["truncation"] = dict(direction="Right", max_length=8, strategy="LongestFirst", stride=0)
    state["padding"] = dict(
        strategy={"Fixed": 8}, direction="Right", pad_to_multiple_of=None, pad_id=0,
        pad_type_id=0, pad_token="[PAD]",
    )  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
    again = load_tokenizer(tmp_path)
    assert again.digest == tokenizer.digest
    assert [len(e.ids) for e in again.encode(["a b", "a " * 50])] == [2, 50]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is no tokenizer in"),
        ({"tokenizer.json": "{not json"}, r"tokenizer.json:1: not valid JSON"),
        ({"tokenizer.json": '{"model": {}}'}, "is not a tokenizer"),
        ({"vocab.json": '{"a": 0}'}, "merges.txt"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c\n"}, "merge 1 is 'a b c'"),
        ({"vocab.txt": "a\nb\n"}, r"no unknown token \(\[UNK\]\)"),
        ({"vocab.txt": "[UNK]\n", "tokenizer_config.json": '{"cls_token": "[X]"}'}, "cls token"),
        ({"spiece.model": "not a model"}, "is not a sentencepiece model"),
    ],
)
def test_bad_files_are_named(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FirthError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_bad_requests_say_what_is_wrong(tmp_path):
    with pytest.raises(FirthError, match="no such directory"):
        load_tokenizer(tmp_path / "absent")
    with pytest.raises(FirthError, match="none of wordpiece, bpe, unigram"):
        train_tokenizer("words", SENTENCES, 100)
    with pytest.raises(FirthError, match=r"too small: .* alone take"):
        train_tokenizer("wordpiece", SENTENCES, 10)
    with pytest.raises(FirthError, match="unigram vocabulary of 5"):
        train_tokenizer("unigram", SENTENCES, 5)
    with pytest.raises(FirthError, match="keeps case"):
        train_tokenizer("bpe", SENTENCES, 400, lowercase=True)
