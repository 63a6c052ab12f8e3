"""`firth generate`: continue a prompt with a causal language model.

firth generate --model DIR --prompt "The vase" --tokens=64 --top-p=0.9
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firth.errors import FirthError
from firth.inference.decode import blocks
from firth.inference.detokenize import Detokenizer
from firth.inference.inputs import check_direction
from firth.inference.language.ngram import NgramLM
from firth.models.model import is_stateful

if TYPE_CHECKING:
    from firth.inference.encoder import Encoder

BATCH_SIZE = 16  # rows at a time; the cache holds the keys and values of their tokens
BLOCK = 16  # decode steps between two checks of the text


@dataclass(frozen=True)
class Generated:
    """One continuation of a prompt.

    row: int, which prompt, from 0. sample: int, which of its samples, from 0. text: the
    continuation, without the stop string. ids: its tokens, with those of the stop string or the
    end-of-text token. reason: why it ends: "length", "end" (of text) or "stop".
    """

    row: int
    sample: int
    text: str
    ids: tuple[int, ...]
    reason: str

    def __repr__(self):
        text = self.text if len(self.text) <= 60 else f"{self.text[:57]}..."
        where = f"row {self.row}, sample {self.sample}"
        return f"Generated({where}: {text!r}, {len(self.ids)} tokens, ends by {self.reason!r})"


def generate(
    encoder: "Encoder | NgramLM",
    texts: str | Sequence[str],
    *,
    max_tokens: int = 64,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    greedy: bool = False,
    stop: Sequence[str] = (),
    seed: int = 0,
    samples: int = 1,
    stream: Callable[[int, int, str], None] | None = None,
    names: Sequence[str] | None = None,
) -> list[Generated]:
    """Continue each text with a causal language model.

    Args:
      encoder: the model.
      texts: a string or a list of them, with or without special tokens. An empty string stands for
        the end-of-text token, after which a new text begins; in a vocabulary of characters that has
        the line end, for that one.
      max_tokens: the most new tokens.
      temperature: divides the logits; a value below 1 makes likely tokens likelier.
      top_k: draw among this many of the likeliest tokens; 0 means all.
      top_p: draw among the fewest likeliest tokens that together have this probability; 1.0 means
        all.
      greedy: take the likeliest token instead of drawing.
      stop: end before the first of these strings.
      seed: gives each row and sample its own random stream, so that a continuation depends on its
        text, its row and its sample number, but not on the other texts.
      samples: the number of continuations of each text.
      stream: called with (row, sample, piece) as soon as a piece of text is certain. Pieces are
        whole characters.
      names: the names of the texts in errors; by default "text 0" and so on.

    Returns one `Generated` for each sample, in the order of the texts. `generate` never chooses an
    id for which the tokenizer has no token. The end-of-text token ends a continuation.

    Raises FirthError for a model that is not causal or has no LM head or tokenizer, for a text that
    leaves too few positions, and for settings out of range.
    """
    settings = dict(temperature=temperature, top_k=top_k, top_p=top_p, greedy=greedy)
    is_ngram = isinstance(encoder, NgramLM)
    if not is_ngram:
        _check_model(encoder)
    stop = _check_settings(encoder, max_tokens, stop, seed, samples, **settings)
    texts = [texts] if isinstance(texts, str) else list(texts)
    names = names or [f"text {i}" for i in range(len(texts))]
    prompts = _prompts(encoder, texts, max_tokens, names)
    wanted = [(row, sample) for row in range(len(texts)) for sample in range(samples)]
    generated = []
    for begin in range(0, len(wanted), BATCH_SIZE):
        some = wanted[begin : begin + BATCH_SIZE]
        rows = [prompts[row] for row, _ in some]
        writers = [Detokenizer(encoder.tokenizer, prompt.tolist(), stop) for prompt in rows]
        size = 1 if stream else BLOCK
        arguments = rows, some, max_tokens, seed, settings, size
        block = encoder.blocks(*arguments) if is_ngram else blocks(encoder, *arguments)
        next(block)
        while open_rows := [i for i, writer in enumerate(writers) if not writer.reason]:
            tokens_BT = block.send(np.array([not writer.reason for writer in writers]))
            for i in open_rows:
                for piece in _push(writers[i], tokens_BT[i].tolist(), encoder, max_tokens):
                    if stream and piece:
                        stream(*some[i], piece)
        for (row, sample), writer in zip(some, writers, strict=True):
            ids = tuple(writer.ids)
            generated.append(Generated(row, sample, writer.text, ids, writer.reason))
    return generated


def _push(
    writer: Detokenizer, tokens: list[int], encoder: "Encoder", max_tokens: int
) -> Iterator[str]:
    """Push the tokens of one block; yields the pieces of text that become certain."""
    for token in tokens:
        if token == encoder.tokenizer.end_id:
            writer.ids.append(token)
            yield writer.finish("end")
            return
        yield writer.push(token)
        if writer.reason:
            return
        if len(writer.ids) == max_tokens:
            yield writer.finish("length")
            return


def _check_model(encoder: "Encoder"):
    source, name = encoder.saved.source, encoder.saved.spec["family"]
    config = encoder.model.encoder.config
    check_direction(encoder)
    if not getattr(config, "causal", False):
        masked = " and predicts masked words: use `firth fill`"
        raise FirthError(
            f"{source}: {name} sees a text from both sides"
            + (masked if getattr(config, "reads_tokens", True) else ", so it cannot go on with one")
        )
    if not hasattr(encoder.model.encoder, "extend") and not is_stateful(config):
        raise FirthError(f"{source}: generating with the family {name} is not supported")
    if "lm" not in encoder.saved.heads:
        raise FirthError(f"{source} has no language-model head ('lm'), which generating needs")
    if "lm" not in encoder.model.heads:
        raise FirthError(f"{source} was loaded without its head 'lm'; load it with heads=True")
    if encoder.tokenizer is None:
        raise FirthError(f"{source} holds no tokenizer, which generating needs")


def _check_settings(
    encoder, max_tokens, stop, seed, samples, *, temperature, top_k, top_p, greedy
) -> tuple[str, ...]:
    """The stop strings as a tuple; FirthError for a setting out of range."""
    size = encoder.tokenizer.vocab_size
    if not (temperature > 0 and math.isfinite(temperature)):
        raise FirthError(
            f"temperature={temperature}: expected a number above 0; for the likeliest token ask "
            "for greedy"
        )
    if not 0 <= top_k <= size:
        raise FirthError(f"top_k={top_k} is outside 0 .. {size}, the size of the vocabulary")
    if not 0 < top_p <= 1:
        raise FirthError(f"top_p={top_p}: expected a probability above 0, at most 1")
    if greedy and (temperature, top_k, top_p, samples) != (1.0, 0, 1.0, 1):
        raise FirthError(
            "greedy takes the one likeliest token: leave temperature, top_k, top_p and samples out"
        )
    for name, value, least in (("max_tokens", max_tokens, 1), ("samples", samples, 1)):
        if value < least:
            raise FirthError(f"{name}={value}: expected at least {least}")
    if not 0 <= seed < 2**32:
        raise FirthError(f"seed={seed} is outside 0 .. {2**32 - 1}")
    if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
        raise FirthError(f"stop={stop!r:.40}: expected a list of strings, none of them empty")
    return tuple(stop)


def _prompts(encoder, texts, max_tokens: int, names) -> list[np.ndarray]:
    """Token ids int32 [n] of each text; FirthError for one that leaves room for too few tokens."""
    tokenizer, limit = encoder.tokenizer, encoder.max_length
    for name, text in zip(names, texts, strict=True):
        if not isinstance(text, str):
            raise FirthError(f"{name} is {text!r:.40}, expected a string")
        if not text and tokenizer.line_end_id is None:
            raise FirthError(
                f"{name} is empty, and the tokenizer in {encoder.saved.source} has no end-of-text "
                "token to begin with; give at least one word"
            )
    if not texts:
        raise FirthError("expected at least one text")
    prompts = []
    encoded = [one.ids for one in tokenizer.encode(texts, special=True)]
    for name, text, ids in zip(names, texts, encoded, strict=True):
        if not text:
            ids = np.array([tokenizer.line_end_id], np.int32)
        if not len(ids):
            raise FirthError(f"{name} is {text!r:.40}, but the tokenizer gives no token for it")
        left = max(limit - len(ids), 0)
        if left < max_tokens:
            raise FirthError(
                f"{name} has {len(ids)} tokens and the model {limit} positions, so {left} can "
                f"follow, not {max_tokens}; shorten it or ask for fewer"
            )
        prompts.append(ids)
    return prompts
