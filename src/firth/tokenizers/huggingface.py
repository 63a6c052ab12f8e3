"""WordPiece, byte-level BPE and whole words (any tokenizer.json), on the `tokenizers` library."""

import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as Backend

from firth.errors import FirthError
from firth.storage.local import read_json, write_json, write_text
from firth.tokenizers.base import (
    Encoding,
    Tokenizer,
    choose_special_tokens,
    flatten,
)

_KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram", "WordLevel": "word"}
ANY_CHARACTER = r"[\s\S]"  # a character vocabulary cuts text here
_LONGEST_WORD = 100  # characters; longer words are [UNK], as in transformers (the BERT code: 200)
_DIVIDER = "\ufdd0"  # a code point that Unicode reserves for internal use
_WORDS_AT_ONCE = 256
_END_OF_WORD = "</w>"


class SubwordTokenizer(Tokenizer):
    """A tokenizer on a `tokenizers` pipeline (normalizer, pre-tokenizer, model)."""

    def __init__(self, backend: Backend, config: Mapping):
        backend.no_truncation()  # published files may carry the limits of one model
        backend.no_padding()
        state = json.loads(backend.to_str())
        model = state["model"]
        if model["type"] not in _KINDS:
            raise FirthError(
                f"a {model['type']} tokenizer is not supported; expected {', '.join(_KINDS)}"
            )
        self.kind = _kind(state)
        ids = backend.get_vocab(with_added_tokens=True)
        vocab = [""] * (1 + max(ids.values(), default=-1))
        for token, number in ids.items():
            vocab[number] = token
        special_tokens = choose_special_tokens(ids, config)
        if model["type"] == "WordLevel":  # unknown words always become this token
            special_tokens["unk"] = model["unk_token"]
        super().__init__(vocab, special_tokens, _meaning(vocab, state))
        # <mask> includes the space before it, as words do in byte-level BPE.
        listed = {t["content"] for t in state["added_tokens"]}
        backend.add_special_tokens(
            [
                AddedToken(token, lstrip=role == "mask" and self.kind == "bpe", special=True)
                for role, token in self.special_tokens.items()
                if token not in listed
            ]
        )
        added = backend.get_added_tokens_decoder()
        self.special_ids |= {number for number, token in added.items() if token.special}
        self.chunks = _chunks(state)
        self._config = dict(config)
        self._prefix = model.get("continuing_subword_prefix") or ""
        self._suffix = model.get("end_of_word_suffix") or ""
        self._special_backend = backend
        self._backend = Backend.from_str(backend.to_str())
        self._backend.encode_special_tokens = True

    def __reduce__(self):
        return _from_state, (self._special_backend.to_str(), self._config)

    def encode(self, texts: Sequence[str], special: bool = False) -> list[Encoding]:
        """See `Tokenizer.encode`."""
        backend = self._special_backend if special else self._backend
        return [
            Encoding(
                np.array(e.ids, np.int32),
                np.array(e.offsets, np.int32).reshape(-1, 2),
                np.array(e.word_ids, np.int32),
            )
            for e in backend.encode_batch(list(texts), add_special_tokens=False)
        ]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_flat`."""
        batch = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return flatten([e.ids for e in batch])

    def encode_words(self, words: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See `Tokenizer.encode_words`.

        Each text costs the library several microseconds besides its tokens. So this joins hundreds
        of words to one text with an added token between them. The library cuts text at added tokens
        first.
        """
        joined = _DIVIDER.join(words)
        if not words or joined.count(_DIVIDER) >= len(words):  # none, or one contains a divider
            return self.encode_flat(words)
        rows = range(0, len(words), _WORDS_AT_ONCE)
        texts = [_DIVIDER.join([*words[n : n + _WORDS_AT_ONCE], ""]) for n in rows]
        batch = self._divided_backend.encode_batch_fast(texts, add_special_tokens=False)
        ids, _ = flatten([e.ids for e in batch])
        divides = ids == self.vocab_size
        return ids[~divides], np.diff(np.flatnonzero(divides), prepend=-1) - 1

    @functools.cached_property
    def _divided_backend(self) -> Backend:
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        backend.add_tokens([AddedToken(_DIVIDER, normalized=False)])
        return backend

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """See `Tokenizer.decode`."""
        return self._special_backend.decode([int(n) for n in ids], skip_special_tokens=skip_special)

    def save(self, directory: str | os.PathLike) -> None:
        """See `Tokenizer.save`: tokenizer.json and tokenizer_config.json beside the vocabulary."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        text = self._special_backend.to_str(pretty=True)
        state = json.loads(text)
        write_text(directory / "tokenizer.json", text)
        if self.kind == "wordpiece":
            write_text(directory / "vocab.txt", "".join(f"{t}\n" for t in self.vocab))
        if self.kind == "bpe":
            ids = json.dumps(state["model"]["vocab"], ensure_ascii=False)
            lines = "".join(f"{merge}\n" for merge in merge_lines(state["model"]))
            write_text(directory / "vocab.json", ids)
            write_text(directory / "merges.txt", f"#version: 0.2\n{lines}")
        config = {"tokenizer_class": self._class_name(state), **self._config, **_casing(state)}
        config |= {f"{role}_token": token for role, token in self.special_tokens.items()}
        write_json(directory / "tokenizer_config.json", config)

    def _class_name(self, state: dict) -> str:
        """The transformers class that reads the saved layout with the same meaning."""
        if self.kind == "wordpiece" and _casing(state):
            return "BertTokenizer"
        if self.kind == "bpe" and _type(state, "pre_tokenizer") == "ByteLevel":
            return "GPT2Tokenizer" if self.cls_id is None else "RobertaTokenizer"
        return "PreTrainedTokenizerFast"

    def _begins_word(self, token: str) -> bool:
        if self.kind in ("word", "char"):
            return True
        if self._suffix:
            raise FirthError(
                f"this vocabulary marks where words end ({self._suffix!r}), not where they begin"
            )
        if self._prefix:
            return not token.startswith(self._prefix)
        return token.startswith(("Ġ", "▁"))


def _from_state(text: str, config: dict) -> SubwordTokenizer:
    return SubwordTokenizer(Backend.from_str(text), config)


def load_subwords(file: Path, config: dict) -> SubwordTokenizer:
    """Load vocab.txt (any *.txt), tokenizer.json or vocab.json beside its merges.txt."""
    try:
        if file.suffix == ".txt":
            backend = wordpiece_backend(_read_vocab(file), config)
        elif isinstance((state := read_json(file)).get("model"), dict):
            backend = Backend.from_file(str(file))
            _apply_casing(backend, config, file)
        elif "Ġ" not in state and any(token.endswith(_END_OF_WORD) for token in state):
            backend = word_end_backend(state, _read_merges(file))
        else:
            backend = byte_level_backend(state, _read_merges(file), config)
        return SubwordTokenizer(backend, config)
    except FirthError as error:
        where = "" if str(file.parent) in str(error) else f"{file}: "
        raise FirthError(f"{where}{error}") from None
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        raise FirthError(f"{file} is not a tokenizer: {error}") from None


def wordpiece_backend(vocab: dict[str, int], config: Mapping) -> Backend:
    """The BERT pipeline; `config` has the keys of tokenizer_config.json."""
    lowercase = config.get("do_lower_case")
    if lowercase is None:
        lowercase = not any(t != t.lower() for t in vocab if not t.startswith("["))
    unk = choose_special_tokens(vocab, config).get("unk")
    if unk not in vocab:
        raise FirthError("the vocabulary has no unknown token ([UNK]); name it in special_tokens")
    backend = Backend(
        models.WordPiece(vocab, unk_token=unk, max_input_chars_per_word=_LONGEST_WORD)
    )
    strip = config.get("strip_accents")
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=lowercase if strip is None else strip,
        lowercase=lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    ends = choose_special_tokens(vocab, config)
    if "cls" in ends and "sep" in ends:
        cls, sep = ends["cls"], ends["sep"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
            special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
        )
    return backend


def byte_level_backend(vocab: dict[str, int], merges: list[str], config: Mapping) -> Backend:
    """The GPT-2 and RoBERTa pipeline; offsets omit the space at the beginning of a token."""
    if config.get("do_lower_case"):
        raise FirthError("byte-level BPE keeps case; it cannot be lowercased")
    space_first = config.get("add_prefix_space", False)
    backend = Backend(models.BPE(vocab, [tuple(m.split(" ")) for m in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space_first)
    backend.decoder = decoders.ByteLevel()
    ends = choose_special_tokens(vocab, config)
    if "cls" in ends and "sep" in ends:
        backend.post_processor = processors.RobertaProcessing(
            (ends["sep"], vocab[ends["sep"]]),
            (ends["cls"], vocab[ends["cls"]]),
            trim_offsets=True,
            add_prefix_space=space_first,
        )
    else:
        backend.post_processor = processors.ByteLevel(trim_offsets=True)
    return backend


def word_end_backend(vocab: dict[str, int], merges: list[str]) -> Backend:
    """GPT's pipeline: BERT's words, lowercased, in pieces that mark the end of a word."""
    backend = Backend(
        models.BPE(
            vocab,
            [tuple(m.split(" ")) for m in merges],
            unk_token="<unk>" if "<unk>" in vocab else None,
            end_of_word_suffix=_END_OF_WORD,
        )
    )
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix=_END_OF_WORD)
    return backend


def _read_vocab(file: Path) -> dict[str, int]:
    lines = file.read_text(encoding="utf-8").split("\n")
    if lines[-1] == "":
        lines.pop()
    return {token.rstrip("\r"): number for number, token in enumerate(lines)}


def _read_merges(file: Path) -> list[str]:
    """The merges beside vocab.json: merges.txt, or x-merges.txt beside x-vocab.json."""
    path = file.with_name(file.name.replace("vocab.json", "merges.txt"))
    if path == file or not path.is_file():
        raise FirthError(f"{file}: expected the merges of byte-level BPE beside it in {path}")
    lines = path.read_text(encoding="utf-8").split("\n")
    merges = [line.rstrip("\r") for line in lines if line and not line.startswith("#version")]
    for number, merge in enumerate(merges, 1):
        if merge.count(" ") != 1:
            raise FirthError(f"{path}: merge {number} is {merge!r}; expected two tokens")
    return merges


def _apply_casing(backend: Backend, config: Mapping, file: Path) -> None:
    """Let tokenizer_config.json and options override tokenizer.json, as transformers does."""
    wanted = {
        name: config[key]
        for name, key in (("lowercase", "do_lower_case"), ("strip_accents", "strip_accents"))
        if config.get(key) is not None
    }
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        for name, value in wanted.items():
            setattr(backend.normalizer, name, value)
        if backend.normalizer.strip_accents is None:
            backend.normalizer.strip_accents = backend.normalizer.lowercase
    elif wanted.get("lowercase") and "Lowercase" not in backend.to_str()[:4000]:
        raise FirthError(f"{file} cannot be lowercased: its normalizer is not BERT's")


def merge_lines(model: dict) -> list[str]:
    """The merges of a BPE model as lines of merges.txt, from any version of tokenizer.json."""
    return [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def _type(state: dict, part: str) -> str | None:
    return (state[part] or {}).get("type")


def _kind(state: dict) -> str:
    """The kind of a pipeline; a WordLevel one cut at every character is of kind "char"."""
    characters = {"Regex": ANY_CHARACTER}
    if state["model"]["type"] == "WordLevel" and _type(state, "pre_tokenizer") == "Split":
        return "char" if state["pre_tokenizer"]["pattern"] == characters else "word"
    return _KINDS[state["model"]["type"]]


def _casing(state: dict) -> dict:
    """The options of a BERT normalizer under their keys in tokenizer_config.json."""
    if _type(state, "normalizer") != "BertNormalizer":
        return {}
    normalizer = state["normalizer"]
    return {
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }


def _meaning(vocab: list[str], state: dict) -> dict:
    """Everything that decides the ids, in a form independent of the library's version."""
    model = state["model"]
    plain = [
        {k: token[k] for k in ("content", "single_word", "lstrip", "rstrip", "normalized")}
        for token in state["added_tokens"]
        if not token["special"]
    ]
    return {
        "vocab": vocab,
        "scores": [score for _, score in model["vocab"]] if model["type"] == "Unigram" else None,
        "merges": merge_lines(model) if model["type"] == "BPE" else None,
        "model": {
            name: model[name]
            for name in (
                "max_input_chars_per_word",
                "continuing_subword_prefix",
                "end_of_word_suffix",
                "byte_fallback",
                "ignore_merges",
            )
            if model.get(name)
        },
        "normalizer": state["normalizer"],
        "pre_tokenizer": {
            k: v for k, v in (state["pre_tokenizer"] or {}).items() if k != "trim_offsets"
        },
        "added_tokens": plain,
    }


def _chunks(state: dict) -> str | None:
    """Where a cut in the text changes no id; see `Tokenizer.chunks`."""
    if any(not token["special"] for token in state["added_tokens"]):
        return None
    normalizer, pre_tokenizer = _type(state, "normalizer"), _type(state, "pre_tokenizer")
    if normalizer == "BertNormalizer" and pre_tokenizer == "BertPreTokenizer":
        return "words"
    if normalizer in (None, "BertNormalizer") and pre_tokenizer == "WhitespaceSplit":
        return "words"
    if normalizer in (None, "BertNormalizer") and _kind(state) == "char":
        return "spaced words"
    if normalizer is None and pre_tokenizer == "ByteLevel" and state["pre_tokenizer"]["use_regex"]:
        return "spaced words"
    return None
