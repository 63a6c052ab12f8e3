"""The special tokens around one text or two: [CLS] A [SEP] B [SEP], and what other systems have."""

from dataclasses import dataclass

import numpy as np

from firth.errors import FirthError

BERT = (("cls",), ("sep",), ("sep",))  # roles before, between and after
GPT = (("start",), ("delimiter",), ("extract",))

# What GPT calls its own three special tokens (Radford et al. 2018, section 3.3); a vocabulary
# without them lends its end-of-text token to all three, as is usual for GPT-2.
_GPT = {"start": "_start_", "delimiter": "_delimiter_", "extract": "_classify_"}


@dataclass(frozen=True)
class Frame:
    """Special token ids before the first text, between the two and after the last one.

    Segment ids are 0 up to the second text and 1 from there; `last_segment` is that of the very
    last token of a row, or None where it has none of its own. Rows are filled up with `pad`.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    pad: int
    last_segment: int | None = None

    def size(self, texts: int) -> int:
        """How many special tokens frame one text, or two."""
        return len(self.before) + len(self.after) + (texts - 1) * len(self.between)


def frame_of(roles: tuple, tokenizer) -> Frame:
    """The frame that a family's FRAME describes: the roles before, between and after the texts.

    A text that ends with [CLS] has it in a segment of its own, as XLNet does. Raises FirthError for
    a tokenizer that lacks a role.
    """

    def token_id(role):
        if role in _GPT:
            number = tokenizer.id(_GPT[role])
            number = tokenizer.end_id if number is None else number
        else:
            number = getattr(tokenizer, f"{role}_id")
            if number is None and role == "pad":  # GPT has none; what is masked may be anything
                number = getattr(tokenizer, "end_id", None)
        if number is None:
            raise FirthError(
                f"the tokenizer has no [{role.upper()}] token, which this model's texts need"
            )
        return number

    before, between, after = (tuple(map(token_id, part)) for part in roles)
    last_segment = 2 if roles[2][-1:] == ("cls",) else None
    return Frame(before, between, after, token_id("pad"), last_segment)


def truncation(
    a_length: np.ndarray, b_length: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens that A loses, tokens that B loses) until both together have `limit`.

    The closed form of BERT's loop: the longer one loses a token at a time, B where they are equal.
    """
    excess = np.maximum(a_length + b_length - limit, 0)
    levelling = np.minimum(excess, np.abs(a_length - b_length))
    shared = excess - levelling
    a_cut = np.where(a_length > b_length, levelling, 0) + shared // 2
    return a_cut, excess - a_cut
