"""The interface of every tokenizer, with its special tokens and its files."""

import abc
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from firth.errors import FirthError

ROLES = ("pad", "unk", "cls", "sep", "mask")

# The names of the special tokens in published vocabularies, the more specific name first.
_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>", "<|endoftext|>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
# The token that ends a text in XLNet, word language models, GPT-2, sentencepiece models and BERT.
_ENDS = ("<eod>", "<eos>", "<|endoftext|>", "</s>", "[SEP]")


class Encoding(NamedTuple):
    """One encoded text.

    ids: int32 [n]. offsets: int32 [n, 2], each token's characters [begin, end) in the text.
    words: int32 [n], the number of each token's word.
    """

    ids: np.ndarray
    offsets: np.ndarray
    words: np.ndarray


class Tokenizer(abc.ABC):
    """The base of all tokenizers; `load_tokenizer` and `train_tokenizer` make them.

    Attributes:
        kind: "wordpiece", "bpe", "unigram", "word" or "char".
        vocab: the tokens in the order of their ids.
        special_tokens: {"pad": "[PAD]", ...} for the roles in ROLES that have a token.
        pad_id, unk_id, cls_id, sep_id, mask_id: their ids, or None.
        special_ids: every special id, those without a role (`<eod>`) included.
        digest: sha256 of everything that decides the ids of a text, and of the special tokens.
        chunks: where a cut in the text changes no id: "words" (at every space), "spaced words"
            (before every lone space) or None.
    """

    kind: str
    chunks: str | None = None

    def __init__(self, vocab: list[str], special_tokens: Mapping[str, str], meaning: dict):
        self.vocab = vocab
        self._ids = {token: number for number, token in enumerate(vocab)}
        self.special_tokens = {r: special_tokens[r] for r in ROLES if r in special_tokens}
        for role, token in self.special_tokens.items():
            if token not in self._ids:
                raise FirthError(
                    f"the {role} token {token!r} is not in the vocabulary of {len(vocab):,} tokens"
                )
        roles = {role: self.id(self.special_tokens.get(role)) for role in ROLES}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = roles.values()
        self.special_ids = frozenset(n for n in roles.values() if n is not None)
        text = json.dumps(
            {**meaning, "kind": self.kind, "special_tokens": self.special_tokens},
            sort_keys=True,
            separators=(",", ":"),
        )
        self.digest = hashlib.sha256(text.encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """The number of ids: 0 .. vocab_size - 1."""
        return len(self.vocab)

    def token(self, number: int) -> str:
        """The token with this id."""
        return self.vocab[number]

    def id(self, token: str | None) -> int | None:
        """The id of this token, or None when the vocabulary lacks it."""
        return self._ids.get(token)

    def describe(self) -> dict:
        """The record of the tokenizer in a store or a checkpoint."""
        return {
            "kind": self.kind,
            "digest": self.digest,
            "vocab_size": self.vocab_size,
            "special_tokens": self.special_tokens,
        }

    @property
    def end_id(self) -> int | None:
        """The id of the token that ends a text, or None: `<eod>`, `<eos>` or the next best one.

        This token has no role of its own. The vocabulary implies it, so the digest omits it.
        """
        ids = (self.id(token) for token in (*_ENDS, self.special_tokens.get("sep")))
        return next((number for number in ids if number is not None), None)

    @property
    def line_end_id(self) -> int | None:
        """The id that stands for a line end where those are tokens.

        A vocabulary of characters may have the line end itself; else it is the end token, or None.
        """
        own = self.id("\n") if self.kind == "char" else None
        return self.end_id if own is None else own

    @functools.cached_property
    def word_starts(self) -> np.ndarray:
        """Bool [vocab_size]: this token begins a word (no `##`; `Ġ`; `▁`); True for specials.

        In word and character vocabularies every token is a word. In those of XLNet and ALBERT
        punctuation is a word, as in their data code, though `Encoding.words` counts only spaces.
        The token alone decides. So in byte-level BPE a text's first word and punctuation, which
        follow no space, count as continuations; `Encoding.words` numbers the words exactly.
        """
        starts = np.fromiter((self._begins_word(t) for t in self.vocab), bool, self.vocab_size)
        starts[list(self.special_ids)] = True
        return starts

    @abc.abstractmethod
    def encode(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """Encode texts, in parallel, without adding special tokens.

        With `special`, special tokens in the text (`"the [MASK] broke"`) keep their ids.
        """

    @abc.abstractmethod
    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Only the ids, faster: int32 [sum of n] of all texts, and the lengths n, int64 [texts]."""

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_flat`, for many short texts."""
        return self.encode_flat(words)

    @abc.abstractmethod
    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of token ids."""

    @abc.abstractmethod
    def save(self, directory: str | os.PathLike) -> None:
        """Write the published layout, which transformers loads, into `directory`."""

    @abc.abstractmethod
    def _begins_word(self, token: str) -> bool:
        """Whether an ordinary token begins a word."""


def flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids as one int32 array and the lengths of the rows, int64."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
    return flat, lengths


def choose_special_tokens(vocab: Iterable[str], config: Mapping) -> dict[str, str]:
    """Role -> token: the config's name, else the first usual name that the vocabulary has."""
    present = set(vocab)
    chosen = {}
    for role in ROLES:
        named = config.get(f"{role}_token")
        usual = next((token for token in _NAMES[role] if token in present), None)
        if named or usual:
            chosen[role] = named or usual
    return chosen
