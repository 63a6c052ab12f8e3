"""The special tokens around one text or two: [CLS] A [SEP] B [SEP] and other families' forms."""

from dataclasses import dataclass

import numpy as np

from firth.errors import FirthError

BERT = (("cls",), ("sep",), ("sep",))  # roles before, between and after
GPT = (("start",), ("delimiter",), ("extract",))

# GPT's names for its three special tokens (Radford et al. 2018, section 3.3). In a vocabulary
# without them the end-of-text token serves as all three, as is usual for GPT-2.
_GPT = {"start": "_start_", "delimiter": "_delimiter_", "extract": "_classify_"}


@dataclass(frozen=True)
class Template:
    """Special token ids before the first text, between the two and after the last one.

    Segment ids are 0 up to the second text and 1 from there. `last_segment` is the segment id of
    the row's last token if it differs, else None. `pad` fills the rest of a row.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    pad: int
    last_segment: int | None = None

    def size(self, texts: int) -> int:
        """The number of special tokens around one text, or two."""
        return len(self.before) + len(self.after) + (texts - 1) * len(self.between)

    def join(self, a, b=None) -> tuple[np.ndarray, int]:
        """(ids int32 [n], where the second text begins, or n) of the ids of one text, or of two."""
        between = () if b is None else self.between
        parts = (self.before, a, between, () if b is None else b, self.after)
        ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
        second = len(self.before) + len(a) + len(between)
        return ids, len(ids) if b is None else second


def build_template(roles: tuple, tokenizer) -> Template:
    """Look up the ids of a family's SPECIAL_TOKENS: the roles before, between and after the texts.

    A final [CLS] gets a segment id of its own, as in XLNet. Raises FirthError for a tokenizer that
    lacks a role.
    """

    def token_id(role):
        if role in _GPT:
            number = tokenizer.id(_GPT[role])
            number = tokenizer.end_id if number is None else number
        else:
            number = getattr(tokenizer, f"{role}_id")
            if number is None and role == "pad":  # GPT has none; the mask hides padding anyway
                number = getattr(tokenizer, "end_id", None)
        if number is None:
            raise FirthError(
                f"the tokenizer has no [{role.upper()}] token, which this model's texts need"
            )
        return number

    before, between, after = (tuple(map(token_id, part)) for part in roles)
    last_segment = 2 if roles[2][-1:] == ("cls",) else None
    return Template(before, between, after, token_id("pad"), last_segment)


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
