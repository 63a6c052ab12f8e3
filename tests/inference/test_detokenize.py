"""Tokens that come one after the other, as text: whole characters, and never past a stop string."""

from helpers.published.bert import add_tokenizer

from firth.inference.detokenize import Detokenizer
from firth.tokenizers.load import load_tokenizer


def tokens_of(tokenizer, text):
    return tokenizer.encode([text])[0].ids.tolist()


def test_only_whole_characters_are_shown(tokenizer):
    text = "Ünï 漢字 🙂\u200d🙂 mat"
    writer, pieces = Detokenizer(tokenizer, tokens_of(tokenizer, "the")), []
    for token in tokens_of(tokenizer, text):
        pieces.append(writer.push(token))
    assert "".join(pieces) == writer.text == text
    assert all("\ufffd" not in piece for piece in pieces) and "" in pieces
    assert "漢" in pieces and "🙂" in pieces


def test_a_character_that_never_ends_is_shown_at_the_end(tokenizer):
    cut = tokens_of(tokenizer, "mat 🙂")[:-1]
    writer = Detokenizer(tokenizer, [])
    shown = "".join(writer.push(token) for token in cut)
    assert shown == "mat " and writer.finish("length").startswith("\ufffd")
    assert writer.reason == "length" and writer.text.startswith("mat \ufffd")


def test_what_may_begin_a_stop_string_is_held_back(tokenizer):
    writer = Detokenizer(tokenizer, [], ("\n\nX", "zz"))
    shown = [writer.push(token) for token in tokens_of(tokenizer, "a\n\nbz\n")]
    assert "".join(shown) == "a\n\nbz" and shown[1:3] == ["", ""]
    assert writer.push(*tokens_of(tokenizer, "\n")) == ""
    assert writer.push(*tokens_of(tokenizer, "X")) == ""
    assert (writer.text, writer.reason) == ("a\n\nbz", "stop")
    writer = Detokenizer(tokenizer, [], ("zz",))
    writer.push(*tokens_of(tokenizer, "z"))
    assert writer.finish("length") == "z" == writer.text


def test_the_first_of_several_stop_strings_counts(tokenizer):
    """Even where one token brings both."""
    writer = Detokenizer(tokenizer, [], ("t", "a"))
    pieces = [writer.push(token) for token in tokens_of(tokenizer, "dog mat")]
    assert "".join(pieces) == writer.text == "dog m" and writer.reason == "stop"


def test_wordpieces_are_joined_to_the_prompt(tmp_path):
    add_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    whole = tokens_of(tokenizer, "the cats sat .")
    assert [tokenizer.token(n) for n in whole] == ["the", "cat", "##s", "sat", "."]
    writer = Detokenizer(tokenizer, whole[:2])
    assert [writer.push(token) for token in whole[2:]] == ["s", " sat", "."]


def test_special_tokens_are_shown(tmp_path):
    add_tokenizer(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    writer = Detokenizer(tokenizer, tokens_of(tokenizer, "the"))
    assert writer.push(tokenizer.sep_id).strip() == "[SEP]"
