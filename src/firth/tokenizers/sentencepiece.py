"""Unigram and BPE models of sentencepiece (`*.model`), as XLNet, ALBERT and T5 publish them."""

import hashlib
import io
import itertools
import os
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece

from firth.errors import FirthError
from firth.storage.local import write_json
from firth.tokenizers.base import Encoding, Tokenizer, choose_special_tokens, flatten

_SPACE = "▁"  # a space in the models' pieces
_FOLDING_CLASSES = ("XLNetTokenizer", "AlbertTokenizer")
# Each of these alone begins a word in both codes. The apostrophe, "=" and ">" are absent.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_ALBERT_CONTINUES = _PUNCTUATION | frozenset(string.ascii_lowercase)
_TRAINING_THREADS = 2  # fixed, because it decides the order of float sums and so the result


@dataclass(frozen=True)
class _Folding:
    """The changes that the XLNet and ALBERT codes make to text before the model sees it.

    First `` and '' become ". Then NFKD decomposes characters and combining marks go. Case comes
    last. This works character by character, so that offsets survive.
    """

    quotes: bool
    strip_accents: bool
    lowercase: bool

    def __call__(self, text: str) -> tuple[str, list[tuple[int, int]]]:
        """The folded text, and for each of its characters the span (begin, end) in `text`.

        The last span is an empty one at the end of `text`.
        """
        if self._keeps_places(text):
            spans = [*itertools.pairwise(range(len(text) + 1)), (len(text), len(text))]
            return self.fold(text), spans
        characters = [(c, n, n + 1) for n, c in enumerate(text)]
        if self.quotes and ("``" in text or "''" in text):
            characters = [
                ('"' if len(m.group()) == 2 else m.group(), m.start(), m.end())
                for m in re.finditer("``|''|.", text, re.DOTALL)
            ]
        if self.lowercase or self.strip_accents:
            characters = [(c, b, e) for letter, b, e in characters for c in self._letter(letter)]
        folded = "".join(c for c, _, _ in characters)
        return folded, [*((b, e) for _, b, e in characters), (len(text), len(text))]

    def fold(self, text: str) -> str:
        """The folded text alone, the same as from a call but several times faster."""
        if self.quotes and ("``" in text or "''" in text):
            text = text.replace("``", '"').replace("''", '"')
        if self.strip_accents and not text.isascii():
            # NFKD of a whole text may reorder combining marks, but none of them stays.
            decomposed = unicodedata.normalize("NFKD", text)
            text = "".join([c for c in decomposed if not unicodedata.combining(c)])
        if self.lowercase:  # "Σ" alone becomes "σ", at the end of a word "ς"
            text = "".join(map(str.lower, text)) if "Σ" in text else text.lower()
        return text

    def _keeps_places(self, text: str) -> bool:
        """Whether every character of the text becomes one."""
        return text.isascii() and "``" not in text and "''" not in text

    def _letter(self, letter: str) -> str:
        if self.strip_accents and not letter.isascii():
            decomposed = unicodedata.normalize("NFKD", letter)
            letter = "".join(c for c in decomposed if not unicodedata.combining(c))
        return letter.lower() if self.lowercase else letter


class PieceTokenizer(Tokenizer):
    """A tokenizer on a sentencepiece model.

    It encodes word by word (words end at spaces) if the model's pieces allow that, as transformers
    does. So a word's ids do not depend on its neighbours. Encoding whole texts gives the same
    pieces, except for ties between two segmentations of equal score (6|66 or 66|6): 5 of 66,000
    paragraphs of Wikipedia differ.
    """

    def __init__(self, proto: bytes, config: Mapping):
        self._proto = proto
        self._model = sentencepiece.SentencePieceProcessor(model_proto=proto)
        numbers = range(self._model.vocab_size())
        vocab = [self._model.id_to_piece(n) for n in numbers]
        # The scores of a BPE model are ranks of merges, those of a unigram model logarithms.
        ranks = all(self._model.get_score(n).is_integer() for n in numbers)
        self.kind = "bpe" if ranks else "unigram"
        special_tokens = choose_special_tokens(vocab, config)
        self._class = config.get("tokenizer_class") or _class_name(special_tokens)
        self._config = dict(config)
        self._folding = _folding(config, vocab, self._class in _FOLDING_CLASSES)
        meaning = {"model": hashlib.sha256(proto).hexdigest(), "folding": vars(self._folding)}
        super().__init__(vocab, special_tokens, meaning)
        self.special_ids |= {n for n in numbers if self._model.is_control(n)}
        across = any(_SPACE in piece[1:] for piece in vocab)
        if not across and self._model.normalize("  a  b ") == f"{_SPACE}a{_SPACE}b":
            self.chunks = "words"

    def __reduce__(self):
        return PieceTokenizer, (self._proto, self._config)

    def encode(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """See `Tokenizer.encode`."""
        return [self._encode(text, special) for text in texts]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_flat`."""
        rows = [text.split(" ") if self.chunks else [text] for text in texts]
        words = [self._folding.fold(word) for row in rows for word in row]
        flat, lengths = flatten(self._model.encode(words, out_type=int))
        ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        totals = np.concatenate(([0], np.cumsum(lengths)))
        return flat, np.diff(totals[ends], prepend=0)

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_words`."""
        if any(" " in word for word in words):
            return self.encode_flat(words)
        return flatten(self._model.encode(list(map(self._folding.fold, words)), out_type=int))

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """See `Tokenizer.decode`."""
        ids = [int(n) for n in ids]
        if skip_special:
            return self._model.decode([n for n in ids if n not in self.special_ids])
        runs = itertools.groupby(ids, key=self.special_ids.__contains__)
        return " ".join(
            " ".join(self.vocab[n] for n in run) if special else self._model.decode(list(run))
            for special, run in runs
        )

    def save(self, directory: str | os.PathLike) -> None:
        """See `Tokenizer.save`: spiece.model and tokenizer_config.json."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / "spiece.model.writing"
        temporary.write_bytes(self._proto)
        os.replace(temporary, directory / "spiece.model")
        config = {name: v for name, v in self._config.items() if name != "strip_accents"} | {
            "tokenizer_class": self._class,
            "do_lower_case": self._folding.lowercase,
            "keep_accents": not self._folding.strip_accents,
        }
        config |= {f"{role}_token": token for role, token in self.special_tokens.items()}
        write_json(directory / "tokenizer_config.json", config)

    def _begins_word(self, token: str) -> bool:
        """Decide as the masking code of the vocabulary's family does.

        In XLNet's (`_is_start_piece`) and ALBERT's (`_is_start_piece_sp`) a word begins with a
        piece that starts with a space or "<", or with a lone character of `_PUNCTUATION`. In
        ALBERT's it also begins with any piece that has a character other than those and the letters
        a to z in both cases: a digit, "'", "=", ">" or a letter beyond ASCII. In other models a
        word begins at a space.
        """
        if token.startswith(_SPACE):
            return True
        if self._class not in _FOLDING_CLASSES:
            return False
        if token.startswith("<") or token in _PUNCTUATION:
            return True
        return self._class == "AlbertTokenizer" and not _ALBERT_CONTINUES.issuperset(token.lower())

    def _encode(self, text: str, special: bool) -> Encoding:
        rows = []  # (id, begin, end, word) of each token
        word = -1
        for at, part in self._parts(text, special):
            if isinstance(part, int):
                word += 1
                rows.append((part, at, at + len(self.vocab[part]), word))
                continue
            folded, spans = self._folding(part)
            pieces = self._model.encode(folded, return_type="offset_mapping")
            for n, (number, piece) in enumerate(zip(pieces["ids"], pieces["pieces"], strict=True)):
                first, last = pieces["offsets"][n]
                while first < last and folded[first].isspace():  # the space before a word
                    first += 1
                begin = spans[first][0]
                end = spans[last - 1][1] if last > first else begin
                word += n == 0 or piece.startswith(_SPACE)
                rows.append((number, at + begin, at + end, word))
        table = np.array(rows, np.int32).reshape(-1, 4)
        ids, offsets, words = table[:, 0], table[:, 1:3], table[:, 3]
        return Encoding(ids.copy(), offsets.copy(), words.copy())

    def _parts(self, text: str, special: bool) -> Iterator[tuple[int, str | int]]:
        """(begin, word or id of a special token) of each part of a text, in order."""
        names = sorted((self.vocab[n] for n in self.special_ids), key=len, reverse=True)
        pattern = "|".join(map(re.escape, names)) if special else "(?!)"  # (?!) matches nothing
        end = 0
        for match in [*re.finditer(pattern, text), None]:
            begin, stretch = end, text[end : match.start() if match else len(text)]
            for word in stretch.split(" ") if self.chunks else [stretch]:
                yield begin, word
                begin += len(word) + 1
            if match:
                yield match.start(), self.id(match.group())
                end = match.end()


def load_pieces(file: Path, config: Mapping) -> PieceTokenizer:
    """Load a sentencepiece model; `config` has the keys of tokenizer_config.json."""
    try:
        return PieceTokenizer(file.read_bytes(), config)
    except OSError as error:
        raise FirthError(f"cannot read {file}: {error.strerror}") from None
    except RuntimeError:
        raise FirthError(f"{file} is not a sentencepiece model, or is damaged") from None


def train_pieces(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool,
    strip_accents: bool,
    special_tokens: Mapping[str, str],
) -> PieceTokenizer:
    """Train a unigram model as ALBERT's; see `firth.tokenizers.load.train_tokenizer`."""
    usual = dict(pad="<pad>", unk="<unk>", cls="[CLS]", sep="[SEP]", mask="[MASK]")
    specials = usual | special_tokens
    folding = _Folding(quotes=True, strip_accents=strip_accents, lowercase=lowercase)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(folding.fold(line) for text in texts for line in text.split("\n")),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            character_coverage=0.9995,
            max_sentence_length=1 << 24,  # bytes; longer lines would be left out
            num_threads=_TRAINING_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece=specials["pad"],
            unk_piece=specials["unk"],
            control_symbols=[specials[role] for role in ("cls", "sep", "mask")],
            minloglevel=2,
        )
    except RuntimeError as error:
        raise FirthError(f"cannot train a unigram vocabulary of {vocab_size:,}: {error}") from None
    config = {f"{role}_token": token for role, token in specials.items()} | {
        "tokenizer_class": "AlbertTokenizer",
        "do_lower_case": lowercase,
        "keep_accents": not strip_accents,
    }
    return PieceTokenizer(model.getvalue(), config)


def _class_name(special_tokens: Mapping[str, str]) -> str:
    """The transformers class that publishes models with these special tokens."""
    classes = {"<cls>": "XLNetTokenizer", "[CLS]": "AlbertTokenizer"}
    return classes.get(special_tokens.get("cls"), "T5Tokenizer")


def _folding(config: Mapping, vocab: Sequence[str], folds: bool) -> _Folding:
    """The folding from tokenizer_config.json; by default that of the vocabulary's family."""
    strip_accents, lowercase = config.get("strip_accents"), config.get("do_lower_case")
    if strip_accents is None:
        strip_accents = folds and not config.get("keep_accents", False)
    if lowercase is None:
        lowercase = folds and all(piece == piece.lower() for piece in vocab if piece[0] not in "[<")
    return _Folding(folds, strip_accents, lowercase)
