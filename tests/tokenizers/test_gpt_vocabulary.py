"""GPT's published vocabulary, whose pieces mark where a word ends."""

import shutil

import pytest

from firth.inference.detokenize import Detokenizer
from firth.tokenizers.load import load_tokenizer

TEXTS = [
    "The vase broke; it wasn't Greek!",
    "  spaces   and\ttabs\nand lines ",
    "Ünïcödé, 漢字 and 🙂 emoji",
    "",
    "don't _start_ 12,345.67 http://a.b/c?d=e&f",
    "antidisestablishmentarianism zzxqj",
]


@pytest.fixture
def directory(shared_data, tmp_path):
    for ours, theirs in (
        ("vocab.json", "openai-gpt-encoder_bpe_40000.json"),
        ("merges.txt", "openai-gpt-vocab_40000.bpe"),
    ):
        shutil.copy(shared_data(f"vocabs/{theirs}"), tmp_path / ours)
    return tmp_path


def test_it_equals_transformers(directory):
    import transformers

    theirs = transformers.OpenAIGPTTokenizer.from_pretrained(directory)
    ours = load_tokenizer(directory)
    assert (ours.kind, ours.vocab_size, ours.unk_id) == ("bpe", 40478, 0)
    assert ours.cls_id is None and ours.end_id is None
    found = [encoded.ids.tolist() for encoded in ours.encode(TEXTS)]
    assert found == [theirs(text)["input_ids"] for text in TEXTS]
    assert ours.decode(found[0]) == theirs.decode(found[0])
    assert [ours.token(n) for n in found[0][:3]] == ["the</w>", "vase</w>", "broke</w>"]


def test_what_is_saved_loads_here_and_in_transformers(directory, tmp_path):
    import transformers

    ours = load_tokenizer(directory)
    ours.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert again.digest == ours.digest
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in TEXTS:
        expected = ours.encode([text])[0].ids.tolist()
        assert again.encode([text])[0].ids.tolist() == expected
        assert theirs(text)["input_ids"] == expected


def test_words_are_written_as_they_are_completed(directory):
    tokenizer = load_tokenizer(directory)
    prompt, text = "the vase", "broke antidisestablishmentarianism ."
    writer = Detokenizer(tokenizer, tokenizer.encode([prompt])[0].ids.tolist())
    tokens = tokenizer.encode([text])[0].ids.tolist()
    assert len(tokens) > 4
    shown = "".join(writer.push(token) for token in tokens) + writer.finish("length")
    whole = tokenizer.decode(tokenizer.encode([f"{prompt} {text}"])[0].ids)
    assert prompt + shown == whole
