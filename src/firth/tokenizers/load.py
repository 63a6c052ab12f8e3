"""Tokenizers of subwords, words and characters, loaded from and saved in published layouts.

`load_tokenizer` reads what is published (`vocab.txt`, `tokenizer.json`, `vocab.json` and
`merges.txt`, `*.model`), `train_tokenizer` makes new ones. Both give a `Tokenizer`: text in, token
ids with character offsets and word numbers out. No special token is added, and none is recognised
inside text unless asked for: "[MASK]" in a corpus is `[`, `mask`, `]`, as in the BERT code. Only a
word vocabulary takes each word for the type that it is, "<unk>" too, as PTB and WikiText need.
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
        lowercase, strip_accents: override what tokenizer_config.json or tokenizer.json say. When
            nothing says, a WordPiece vocabulary without a capital letter is lowercased, and accents
            are stripped where text is lowercased (as in the BERT code).
        special_tokens: role -> token for roles in ROLES, over what the files say.

    Raises FirthError when the files are missing or damaged.
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
    """Train a tokenizer; the same texts give the same tokenizer, whatever the number of cores.

    Args:
        kind: "wordpiece" (BERT), "bpe" (byte-level, RoBERTa), "unigram" (ALBERT), "word" (cut at
            white space: PTB, WikiText) or "char" (text8).
        texts: any texts, read once; lines or paragraphs rather than whole books.
        vocab_size: the number of tokens at most, special tokens included; None keeps every type
            of the text ("word" and "char") or means 30,000.
        lowercase: fold case; None does so for "wordpiece" and "unigram"; "bpe" cannot.
        strip_accents: drop accents; None does so where text is lowercased.
        special_tokens: role -> token; by default those of the published models of this kind, and
            only <unk> for "word" and "char", which have <eos> beside.
        min_frequency: pairs ("wordpiece" and "bpe": None is 2) or types ("word" and "char": None
            is 1) seen less often are left out.

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
    """tokenizer_config.json, and under it special_tokens_map.json, as far as they are there."""
    config = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = directory / name
        if file.is_file():
            config |= read_json(file)
    for role in ROLES:
        token = config.get(f"{role}_token")
        if isinstance(token, dict):  # how an AddedToken is written
            config[f"{role}_token"] = token.get("content")
    return config
