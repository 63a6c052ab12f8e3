"""WordPiece and byte-level BPE (and any tokenizer.json), on the `tokenizers` library."""

import functools
import itertools
import json
import os
from collections import Counter
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
    trainers,
)
from tokenizers import Tokenizer as Backend

from firth.data.tokenize import (
    Encoded,
    Tokenizer,
    choose_special_tokens,
    flatten,
    read_json,
    write_json,
    write_text,
)
from firth.errors import FirthError

_KINDS = {"WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}
_LONGEST_WORD = 100  # characters; longer words are [UNK], as in transformers (the BERT code: 200)
_LARGEST_ALPHABET = 1000  # characters a trained WordPiece vocabulary keeps, the most frequent ones


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
        self.kind = _KINDS[model["type"]]
        ids = backend.get_vocab(with_added_tokens=True)
        vocab = [""] * (1 + max(ids.values(), default=-1))
        for token, number in ids.items():
            vocab[number] = token
        special_tokens = choose_special_tokens(ids, config)
        super().__init__(vocab, special_tokens, _meaning(vocab, state))
        # <mask> takes the space before it, as the words it stands for do in byte-level BPE.
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

    def encode(self, texts: Sequence[str], special: bool = False) -> list[Encoded]:
        """See `Tokenizer.encode`."""
        backend = self._special_backend if special else self._backend
        return [
            Encoded(
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
            lines = "".join(f"{merge}\n" for merge in _merges(state["model"]))
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
            backend = _wordpiece(_read_vocab(file), config)
        elif isinstance((state := read_json(file)).get("model"), dict):
            backend = Backend.from_file(str(file))
            _apply_casing(backend, config, file)
        else:
            backend = _byte_level(state, _read_merges(file), config)
        return SubwordTokenizer(backend, config)
    except FirthError as error:
        where = "" if str(file.parent) in str(error) else f"{file}: "
        raise FirthError(f"{where}{error}") from None
    except Exception as error:  # the library raises bare Exception for whatever it cannot parse
        raise FirthError(f"{file} is not a tokenizer: {error}") from None


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
    """Train WordPiece or byte-level BPE; see `firth.data.tokenize.train_tokenizer`."""
    if kind == "bpe" and lowercase:
        raise FirthError("byte-level BPE keeps case; train it with lowercase=False (--cased)")
    texts = list(texts)
    config = {"do_lower_case": lowercase, "strip_accents": strip_accents} if kind != "bpe" else {}
    if kind == "wordpiece":
        usual = dict(pad="[PAD]", unk="[UNK]", cls="[CLS]", sep="[SEP]", mask="[MASK]")
        specials = usual | special_tokens
        backend = _wordpiece({specials["unk"]: 0}, config | {"unk_token": specials["unk"]})
        letters, tails = _alphabet(texts, backend)
        # The library numbers ## letters in an order that changes from run to run, and breaks ties
        # between merges by these numbers. Put in as special tokens they are numbered as listed.
        first = [*specials.values(), *letters, *(f"##{c}" for c in tails)]
        trainer_class, alphabet = trainers.WordPieceTrainer, letters
        after = []
    else:
        usual = dict(cls="<s>", pad="<pad>", sep="</s>", unk="<unk>", mask="<mask>")
        specials = usual | special_tokens
        backend = _byte_level({}, [], config)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        first = [t for role, t in specials.items() if role != "mask"]
        trainer_class = trainers.BpeTrainer
        after = [specials["mask"]]  # last, where RoBERTa has it
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
        return SubwordTokenizer(_wordpiece(vocab, config), config)
    return SubwordTokenizer(_byte_level(vocab, _merges(model), config), config)


def _alphabet(texts: Sequence[str], backend: Backend) -> tuple[list[str], list[str]]:
    """The most frequent letters of normalised text, and those that continue a word; both sorted.

    A letter is any character of a word or punctuation mark; equal counts go to the lower code.
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

    kept = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    kept = set(kept[:_LARGEST_ALPHABET])
    tails = {b for a, b in pairs if b in kept and in_word(a) and in_word(b)}
    return sorted(kept), sorted(tails)


def _wordpiece(vocab: dict[str, int], config: Mapping) -> Backend:
    """The BERT pipeline; `config` in the words of tokenizer_config.json."""
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


def _byte_level(vocab: dict[str, int], merges: list[str], config: Mapping) -> Backend:
    """The GPT-2 and RoBERTa pipeline; offsets leave out the space that a token begins with."""
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
    """tokenizer_config.json and options win over tokenizer.json, as in transformers."""
    wanted = {
        ours: config[theirs]
        for ours, theirs in (("lowercase", "do_lower_case"), ("strip_accents", "strip_accents"))
        if config.get(theirs) is not None
    }
    if isinstance(backend.normalizer, normalizers.BertNormalizer):
        for name, value in wanted.items():
            setattr(backend.normalizer, name, value)
        if backend.normalizer.strip_accents is None:
            backend.normalizer.strip_accents = backend.normalizer.lowercase
    elif wanted.get("lowercase") and "Lowercase" not in backend.to_str()[:4000]:
        raise FirthError(f"{file} cannot be lowercased: its normalizer is not BERT's")


def _merges(model: dict) -> list[str]:
    return [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def _type(state: dict, part: str) -> str | None:
    return (state[part] or {}).get("type")


def _casing(state: dict) -> dict:
    """The switches of a BERT normalizer in the words of tokenizer_config.json."""
    if _type(state, "normalizer") != "BertNormalizer":
        return {}
    normalizer = state["normalizer"]
    return {
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }


def _meaning(vocab: list[str], state: dict) -> dict:
    """What decides the ids, in a form that does not change with the library's version."""
    model = state["model"]
    plain = [
        {k: token[k] for k in ("content", "single_word", "lstrip", "rstrip", "normalized")}
        for token in state["added_tokens"]
        if not token["special"]
    ]
    return {
        "vocab": vocab,
        "scores": [score for _, score in model["vocab"]] if model["type"] == "Unigram" else None,
        "merges": _merges(model) if model["type"] == "BPE" else None,
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
    """How text may be cut without changing an id; see `Tokenizer.chunks`."""
    if any(not token["special"] for token in state["added_tokens"]):
        return None
    normalizer, pre_tokenizer = _type(state, "normalizer"), _type(state, "pre_tokenizer")
    if normalizer == "BertNormalizer" and pre_tokenizer == "BertPreTokenizer":
        return "words"
    if normalizer is None and pre_tokenizer == "ByteLevel" and state["pre_tokenizer"]["use_regex"]:
        return "spaced words"
    return None
