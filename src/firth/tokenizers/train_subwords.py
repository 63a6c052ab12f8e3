"""Train WordPiece and byte-level BPE vocabularies, the same ones on every run and machine."""

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer as Backend
from tokenizers import pre_tokenizers, trainers

from firth.errors import FirthError
from firth.tokenizers.huggingface import (
    SubwordTokenizer,
    byte_level_backend,
    merge_lines,
    wordpiece_backend,
)

_LARGEST_ALPHABET = 1000  # a WordPiece vocabulary keeps this many characters, the most frequent


def train_subwords(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool,
    strip_accents: bool,
    special_tokens: Mapping[str, str],
    min_frequency: int,
) -> SubwordTokenizer:
    """Train WordPiece or byte-level BPE; see `firth.tokenizers.load.train_tokenizer`."""
    if kind == "bpe" and lowercase:
        raise FirthError("byte-level BPE keeps case; train it without folding case (--cased)")
    texts = list(texts)
    config = {"do_lower_case": lowercase, "strip_accents": strip_accents} if kind != "bpe" else {}
    if kind == "wordpiece":
        usual = dict(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
        specials = usual | special_tokens
        backend = wordpiece_backend({specials["unk"]: 0}, config | {"unk_token": specials["unk"]})
        letters, tails = _alphabet(texts, backend)
        # The library numbers ## letters in an order that changes from run to run, and breaks ties
        # between merges by these numbers. As special tokens they get numbers in the listed order.
        first = [*specials.values(), *letters, *(f"##{c}" for c in tails)]
        trainer_class, alphabet = trainers.WordPieceTrainer, letters
        after = []
    else:
        usual = dict(cls="<s>", pad="<pad>", sep="</s>", unk="<unk>", mask="<mask>")
        specials = usual | special_tokens
        backend = byte_level_backend({}, [], config)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        first = [t for role, t in specials.items() if role != "mask"]
        trainer_class = trainers.BpeTrainer
        after = [specials["mask"]]  # last, as in RoBERTa
    fewest = len(set(first) | set(alphabet)) + len(after)
    if vocab_size < fewest:
        raise FirthError(
            f"a vocabulary of {vocab_size:,} is too small: special tokens and the characters of "
            f"this text alone take {fewest:,}"
        )
    trainer = trainer_class(
        vocab_size=vocab_size - len(after),
        min_frequency=min_frequency,
        special_tokens=first,
        initial_alphabet=list(alphabet),
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    vocab = model["vocab"] | {t: len(model["vocab"]) + i for i, t in enumerate(after)}
    config |= {f"{role}_token": token for role, token in specials.items()}
    if kind == "wordpiece":
        return SubwordTokenizer(wordpiece_backend(vocab, config), config)
    return SubwordTokenizer(byte_level_backend(vocab, merge_lines(model), config), config)


def _alphabet(texts: Sequence[str], backend: Backend) -> tuple[list[str], list[str]]:
    """The most frequent letters of normalised text, and those that continue a word; both sorted.

    A letter is any character of a word, or a punctuation mark. Of equal counts the lower code wins.
    """
    words = Counter()
    for text in texts:
        words.update(text.split(" "))
    counts, pairs = Counter(), set()
    for word, count in words.items():
        normalised = backend.normalizer.normalize_str(word)
        pairs.update(itertools.pairwise(normalised))
        for letter in normalised:
            counts[letter] += count

    @functools.cache
    def in_word(letter: str) -> bool:
        return len(backend.pre_tokenizer.pre_tokenize_str(f"a{letter}a")) == 1

    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    letters = set(frequent[:_LARGEST_ALPHABET])
    tails = {b for a, b in pairs if b in letters and in_word(a) and in_word(b)}
    return sorted(letters), sorted(tails)
