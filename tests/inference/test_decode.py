"""The cache of generation: it grows with the text on a CPU, and no step copies it."""

import re

import jax
import numpy as np
import pytest

from firth.inference import decode

P, BLOCK, TOKENS = 16, 7, 60
GREEDY = dict(temperature=1.0, top_k=0, top_p=1.0, greedy=True)
DRAWN = dict(temperature=1.5, top_k=9, top_p=0.9, greedy=False)
# Three rows are padded to four.
PROMPTS = [np.array(ids, np.int32) for ids in ([5, 6, 7, 8, 9], [70, 3], [9] * 12)]


def written(encoder, settings, monkeypatch, first, platform="cpu"):
    """Tokens [B, TOKENS], the hidden state [N, B, D] and the cache's slots [N] of N blocks."""
    steps, hidden, slots = decode._decode_steps, [], []

    def observed(*args, **options):
        out_BT, (hidden_BD, cache) = steps(*args, **options)
        hidden.append(np.array(hidden_BD[: len(PROMPTS)]))
        slots.append(jax.tree.leaves(cache)[0].shape[-2])
        return out_BT, (hidden_BD, cache)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "FIRST", first)
        patch.setattr(decode, "_decode_steps", observed)
        patch.setattr(jax, "default_backend", lambda: platform)
        numbers = [(row, 0) for row in range(len(PROMPTS))]
        block = decode.blocks(encoder, PROMPTS, numbers, TOKENS, 3, settings, BLOCK)
        next(block)
        found = [block.send(np.ones(len(PROMPTS), bool)) for _ in range(0, TOKENS, BLOCK)]
    return np.concatenate(found, axis=1), np.stack(hidden), slots


@pytest.mark.parametrize("settings", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_growing_cache_gives_the_tokens_and_states_of_a_whole_one(gpt2, settings, monkeypatch):
    tokens, hidden, slots = written(gpt2[1], settings, monkeypatch, first=4 * 16)
    all_tokens, all_hidden, all_slots = written(gpt2[1], settings, monkeypatch, first=4 * 64)
    assert tokens.shape == (3, TOKENS) and np.abs(hidden).mean() > 0.1
    np.testing.assert_array_equal(tokens, all_tokens)
    np.testing.assert_allclose(hidden, all_hidden, rtol=0, atol=1e-5)
    # A step sees no slots but those of the room that the block's last token needs.
    ends = [min(begin + BLOCK, TOKENS) for begin in range(0, TOKENS, BLOCK)]
    assert slots == [P + min(room for room in (16, 32, 64) if room >= end) for end in ends]
    assert {*all_slots} == {P + 64} and slots[:3] == [P + 16, P + 16, P + 32]


def test_other_devices_make_the_room_at_once(gpt2, monkeypatch):
    """To compile a step for each size costs them more than to read the whole cache."""
    tokens, _, slots = written(gpt2[1], GREEDY, monkeypatch, first=4 * 16, platform="gpu")
    assert {*slots} == {P + 64}
    np.testing.assert_array_equal(tokens, written(gpt2[1], GREEDY, monkeypatch, first=4 * 16)[0])


@pytest.mark.parametrize("rows", [1, 4])
def test_a_step_copies_no_cache(gpt2, rows, monkeypatch):
    steps, texts = decode._decode_steps, []

    def compiled(*args, **options):
        leaf = jax.tree.leaves(args[2][1])[0]
        texts.append((steps.lower(*args, **options).compile().as_text(), leaf.size))
        return steps(*args, **options)

    monkeypatch.setattr(decode, "_decode_steps", compiled)
    numbers = [(row, 0) for row in range(rows)]
    block = decode.blocks(gpt2[1], PROMPTS[:1] * rows, numbers, TOKENS, 0, GREEDY, BLOCK)
    next(block)
    block.send(np.ones(rows, bool))
    ((text, size),) = texts
    moved = re.findall(r"= \w+\[([\d,]+)\]\S* (copy|transpose|slice)\(", text)
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape, _ in moved]
    assert "dynamic-update-slice" in text and max(sizes, default=0) < size
