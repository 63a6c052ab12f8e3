"""`firth fill`: the likeliest words for each [MASK] of a text.

firth fill --model DIR "The [MASK] broke." --top=5
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from firth.errors import FirthError
from firth.inference.batching import pad_rows
from firth.inference.inputs import Text
from firth.models.model import bound

if TYPE_CHECKING:
    from firth.inference.encoder import Encoder

MASK = "[MASK]"  # every model takes this spelling of the mask, besides its tokenizer's own
BATCH_SIZE = 32  # texts encoded at a time
MASKS_AT_ONCE = 64  # rows of vocabulary logits computed at a time


class Choice(NamedTuple):
    """One token for one mask.

    token: as the vocabulary has it ("##s", "Ġword"). id: its id. probability: 0 .. 1.
    text: the text (or pair) with this token for the mask; other masks stay, as the model spells
    them.
    """

    token: str
    id: int
    probability: float
    text: Text


@dataclass(frozen=True)
class Filled:
    """The choices for one mask.

    row: int, which of the texts, from 0. position: int, the index of the mask among the text's
    tokens; [CLS] is 0. choices: tuple of `Choice` [top], the likeliest first.
    """

    row: int
    position: int
    choices: tuple[Choice, ...]

    def __repr__(self):
        shown = [f"{choice.token} {choice.probability:.3f}" for choice in self.choices[:5]]
        more = ", ..." if len(self.choices) > 5 else ""
        return f"Filled(row {self.row}, position {self.position}: {', '.join(shown)}{more})"


def fill(
    encoder: "Encoder",
    texts: Text | Sequence[Text],
    top: int = 5,
    targets: Sequence[str] | None = None,
    *,
    names: Sequence[str] | None = None,
) -> list[Filled]:
    """The likeliest tokens for each mask, from a model with a masked-LM head.

    The model fills each mask while the others stay masked, so the best choices of two masks need
    not be the best pair. A choice that begins a word takes the mask's place. A choice that
    continues one ("##s") joins the text before it.

    Args:
      encoder: the model.
      texts: a string, a pair (a tuple of two), or a list of strings and pairs. Write the mask as
        "[MASK]" or as the tokenizer does ("<mask>").
      top: the number of choices for a mask (all the targets, if there are fewer).
      targets: choose only among these words. Each must be one token: as written after a space, or
        as the vocabulary has it ("##s").
      names: the names of the texts in errors; by default "text 0" and so on.

    Returns one `Filled` for each mask, in the order of the texts and of the masks in them.
    Probabilities are a float32 softmax over the model's whole vocabulary, or over the targets.
    `fill` never chooses a row of the vocabulary for which the tokenizer has no token.

    Raises FirthError for a model without a masked-LM head, tokenizer or mask token, a text that has
    no mask or is too long, a target that is not one token, and `top` out of range.
    """
    source, tokenizer = encoder.saved.source, encoder.tokenizer
    if "mlm" not in encoder.saved.heads:
        raise FirthError(f"{source} has no masked-LM head ('mlm'), which filling masks needs")
    if "mlm" not in encoder.model.heads:
        raise FirthError(f"{source} was loaded without its head 'mlm'; load it with heads=True")
    if tokenizer is None:
        raise FirthError(f"{source} holds no tokenizer, which filling masks needs")
    if tokenizer.mask_id is None:
        raise FirthError(f"the tokenizer in {source} has no mask token")
    listed_V = np.zeros(encoder.saved.spec["vocab_size"], bool)
    listed_V[: tokenizer.vocab_size] = [token != "" for token in tokenizer.vocab]  # "" is a hole
    if not 1 <= top <= listed_V.sum():
        raise FirthError(f"top={top} is outside 1 .. {listed_V.sum()}, the size of the vocabulary")
    if targets is not None:
        chosen = _target_ids(tokenizer, targets)
        listed_V = np.isin(np.arange(len(listed_V)), chosen)
        top = min(top, len(chosen))

    texts = [texts] if isinstance(texts, str | tuple) else list(texts)
    spelt = tokenizer.special_tokens["mask"]
    texts = [_spell(text, spelt) for text in texts]
    names = names or [f"text {i}" for i in range(len(texts))]
    tokenised = encoder.tokenise(texts, names=names)
    places = [np.flatnonzero(ids == tokenizer.mask_id) for ids, _ in tokenised]
    for name, positions in zip(names, places, strict=True):
        if not len(positions):
            other = "" if spelt == MASK else f" or {spelt}"
            raise FirthError(f"{name} has no mask; for this model it is written {MASK}{other}")

    filled = []
    for row, position, values, ids in _best(encoder, tokenised, places, listed_V, targets, top):
        if not filled or filled[-1].row != row:
            spans = iter(_spans(tokenizer, texts[row]))
        part, begin, end = next(spans)
        choices = []
        for value, number in zip(values.tolist(), ids.tolist(), strict=True):
            text = _put(tokenizer, texts[row], part, begin, end, number)
            choices.append(Choice(tokenizer.token(number), number, value, text))
        filled.append(Filled(row, position, tuple(choices)))
    return filled


def _target_ids(tokenizer, targets) -> list[int]:
    """The id of each target; FirthError for one that is not one token."""
    if isinstance(targets, str) or not targets or not all(isinstance(t, str) for t in targets):
        raise FirthError(f"targets={targets!r:.40}: expected a list of words")
    words = {}  # id -> target
    for target in targets:
        # Inside a text words follow a space, which byte-level BPE keeps in the token.
        ways = [e.ids.tolist() for e in tokenizer.encode([f" {target}", target])]
        single = [ids[0] for ids in ways if len(ids) == 1 and ids[0] != tokenizer.unk_id]
        number = single[0] if single else tokenizer.id(target or None)
        if number is None:
            pieces = " ".join(tokenizer.token(n) for n in ways[1]) or "none"
            raise FirthError(
                f"target {target!r} is not one token of this model; its pieces are {pieces}"
            )
        if number in words:
            raise FirthError(
                f"targets {words[number]!r} and {target!r} are the same token, "
                f"{tokenizer.token(number)!r}"
            )
        words[number] = target
    return list(words)


def _spell(text, mask: str):
    """A text with its masks as the tokenizer spells them; `Encoder.tokenise` refuses the rest."""
    if isinstance(text, tuple | list):
        return tuple(_spell(part, mask) for part in text)
    return text.replace(MASK, mask) if isinstance(text, str) else text


def _best(encoder, tokenised, places, listed_V, targets, top) -> Iterator:
    """(row, position, probabilities [top], ids [top]) of each mask in turn."""
    for begin in range(0, len(tokenised), BATCH_SIZE):
        rows = range(begin, min(begin + BATCH_SIZE, len(tokenised)))
        batch = pad_rows(encoder.pad([tokenised[row] for row in rows]), BATCH_SIZE)
        last_BLD = _encode(encoder.model, encoder.params, *batch)
        masks = [(row, position) for row in rows for position in places[row].tolist()]
        for first in range(0, len(masks), MASKS_AT_ONCE):
            some = masks[first : first + MASKS_AT_ONCE]
            index_K2 = (np.array(some) - [begin, 0]).astype(np.int32)
            (index_K2,) = pad_rows([index_K2], MASKS_AT_ONCE)
            best = _choose(
                encoder.model,
                encoder.params,
                last_BLD,
                index_K2,
                listed_V,
                restricted=targets is not None,
                top=top,
            )
            for mask, values, ids in zip(some, *jax.device_get(best), strict=False):
                yield *mask, values, ids


@functools.partial(jax.jit, static_argnames="model")
def _encode(model, params, tokens_BL, segments_BL, mask_BL):
    def last(model, *batch):
        return model.encoder(*batch).last

    return bound(model, last)(params, tokens_BL, segments_BL, mask_BL)


@functools.partial(jax.jit, static_argnames=("model", "restricted", "top"))
def _choose(model, params, last_BLD, index_K2, listed_V, *, restricted, top):
    """Probabilities float32 [K, top] and ids [K, top]; only the masks go through the head."""
    hidden_KD = last_BLD[index_K2[:, 0], index_K2[:, 1]]
    logits_KV = bound(model, type(model).mlm)(params, hidden_KD[None])[0]
    open_KV = jnp.where(listed_V, logits_KV, -jnp.inf)
    best, ids = jax.lax.top_k(open_KV, top)
    whole = jax.nn.logsumexp(open_KV if restricted else logits_KV, axis=1, keepdims=True)
    return jnp.exp(best - whole), ids


def _spans(tokenizer, text: Text) -> Iterator[tuple[int, int, int]]:
    """(0 or 1 for the text of a pair, begin, end) of each mask's characters, without spaces."""
    for part, string in enumerate([text] if isinstance(text, str) else text):
        (encoded,) = tokenizer.encode([string], special=True)
        for begin, end in encoded.offsets[encoded.ids == tokenizer.mask_id].tolist():
            span = string[begin:end]  # in some tokenizers the mask includes the space before it
            yield part, end - len(span.lstrip()), begin + len(span.rstrip())


def _put(tokenizer, text: Text, part: int, begin: int, end: int, number: int) -> Text:
    """The text with the token `number` in place of the characters begin .. end - 1."""
    if not isinstance(text, str):
        changed = _put(tokenizer, text[part], 0, begin, end, number)
        return (changed, text[1]) if part == 0 else (text[0], changed)
    # Decoding a token after itself shows whether it begins with a space inside a text.
    once, twice = (tokenizer.decode([number] * n, skip_special=False) for n in (1, 2))
    piece = twice[len(once) :]
    before = text[:begin] if piece.startswith(" ") else text[:begin].rstrip()
    return before + piece.removeprefix(" ") + text[end:]
