"""Load and train tokenizers of subwords, words and characters, in published layouts.

`load_tokenizer` reads published files (`vocab.txt`, `tokenizer.json`, `vocab.json` and
`merges.txt`, `*.model`). `train_tokenizer` makes new tokenizers. Both return a `Tokenizer`, which
turns text into token ids with character offsets and word numbers. It adds no special tokens. By
default it recognises none inside text: "[MASK]" in a corpus is `[`, `mask`, `]`, as in the BERT
code. Only a word vocabulary looks up every word as it is, "<unk>" too, as PTB and WikiText need.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from firth.errors import FirthError
from firth.storage.local import read_json
from firth.tokenizers.base import ROLES, Tokenizer

_USUAL_SIZE = 30_000  # of a subword vocabulary
_SUBWORDS = ("wordpiece", "bpe", "unigram")
_WORDS = ("word", "char")


def load_tokenizer(
    path: str | os.PathLike,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    special_tokens: Mapping[str, str] | None = None,
) -> Tokenizer:
    """Load a published tokenizer from a directory or from one of its files.

    Args:
        path: holds, in this order of preference, tokenizer.json, vocab.txt, vocab.json with
            merges.txt, or one *.model (sentencepiece).
        lowercase, strip_accents: override tokenizer_config.json and tokenizer.json. Without any of
            them, a WordPiece vocabulary without capital letters lowercases text, and lowercasing
            strips accents (as in the BERT code).
        special_tokens: role -> token for roles in ROLES; overrides the files.

    Raises FirthError if the files are missing or damaged.
    """
    path = Path(path)
    file = _find_file(path)
    config = _read_config(file.parent)
    if lowercase is not None:
        config["do_lower_case"] = lowercase
    if strip_accents is not None:
        config["strip_accents"] = strip_accents
    unknown = set(special_tokens or {}) - set(ROLES)
    if unknown:
        raise FirthError(f"special token role {min(unknown)!r} is none of {', '.join(ROLES)}")
    config |= {f"{role}_token": token for role, token in (special_tokens or {}).items()}
    if file.suffix == ".model":
        from firth.tokenizers.sentencepiece import load_pieces

        return load_pieces(file, config)
    from firth.tokenizers.huggingface import load_subwords

    return load_subwords(file, config)


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    vocab_size: int | None = None,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    special_tokens: Mapping[str, str] | None = None,
    min_frequency: int | None = None,
) -> Tokenizer:
    """Train a tokenizer; the same texts give the same tokenizer on any number of cores.

    Args:
        kind: "wordpiece" (BERT), "bpe" (byte-level, RoBERTa), "unigram" (ALBERT), "word" (cut at
            white space: PTB, WikiText) or "char" (text8).
        texts: any texts, read once; better lines or paragraphs than whole books.
        vocab_size: the most tokens, special tokens included. None keeps every type of the text
            ("word" and "char") or means 30,000.
        lowercase: fold case. None means True for "wordpiece" and "unigram", else False; "bpe"
            cannot fold case.
        strip_accents: drop accents; None means the same as `lowercase`.
        special_tokens: role -> token. The default is those of the published models of this kind.
            For "word" and "char" it is <unk> alone, and <eos> is always added.
        min_frequency: omit rarer pairs ("wordpiece" and "bpe": None is 2) or types ("word" and
            "char": None is 1).

    Raises FirthError for an unknown kind, or a vocabulary too small for the text's characters.
    """
    if kind not in _SUBWORDS + _WORDS:
        raise FirthError(f"tokenizer kind {kind!r} is none of {', '.join(_SUBWORDS + _WORDS)}")
    if lowercase is None:
        lowercase = kind in ("wordpiece", "unigram")
    options = dict(
        lowercase=lowercase,
        strip_accents=lowercase if strip_accents is None else strip_accents,
        special_tokens=dict(special_tokens or {}),
    )
    if kind != "unigram":
        usual = 1 if kind in _WORDS else 2
        options["min_frequency"] = usual if min_frequency is None else min_frequency
    if kind in _WORDS:
        from firth.tokenizers.train_words import train_words

        return train_words(kind, texts, vocab_size, **options)
    vocab_size = _USUAL_SIZE if vocab_size is None else vocab_size
    if kind == "unigram":
        from firth.tokenizers.sentencepiece import train_pieces

        return train_pieces(texts, vocab_size, **options)
    from firth.tokenizers.train_subwords import train_subwords

    return train_subwords(kind, texts, vocab_size, **options)


def _find_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise FirthError(f"there is no tokenizer at {path}: no such directory or file")
    for name in ("tokenizer.json", "vocab.txt", "vocab.json"):
        if (path / name).is_file():
            return path / name
    models = sorted(path.glob("*.model"))
    if len(models) == 1:
        return models[0]
    raise FirthError(
        f"there is no tokenizer in {path}: expected tokenizer.json, vocab.txt, vocab.json with "
        "merges.txt, or one *.model"
    )


def _read_config(directory: Path) -> dict:
    """tokenizer_config.json, over special_tokens_map.json; either may be missing."""
    config = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = directory / name
        if file.is_file():
            config |= read_json(file)
    for role in ROLES:
        token = config.get(f"{role}_token")
        if isinstance(token, dict):  # the JSON form of an AddedToken
            config[f"{role}_token"] = token.get("content")
    return config
