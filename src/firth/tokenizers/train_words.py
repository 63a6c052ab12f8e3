"""Word and character vocabularies, as in the classical language-modelling corpora.

They cut text at white space or into characters, and each type has an id: PTB, WikiText, text8.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from firth.errors import FirthError
from firth.tokenizers.huggingface import ANY_CHARACTER, SubwordTokenizer

UNKNOWN, END = "<unk>", "<eos>"


def train_words(
    kind: str,
    texts: Iterable[str],
    vocab_size: int | None,
    *,
    lowercase: bool,
    strip_accents: bool,
    special_tokens: Mapping[str, str],
    min_frequency: int,
) -> SubwordTokenizer:
    """Collect a vocabulary; see `firth.tokenizers.load.train_tokenizer`.

    Special tokens come first (<unk>, <eos>), then the types by falling frequency and then by their
    characters. The tokenizer recognises special tokens in text.
    """
    roles = {"unk": UNKNOWN, **special_tokens}
    specials = list(dict.fromkeys([*roles.values(), END]))
    if vocab_size is not None and vocab_size <= len(specials):
        raise FirthError(
            f"a vocabulary of {vocab_size:,} is too small: special tokens alone take "
            f"{len(specials):,}"
        )
    backend = _backend(kind, {roles["unk"]: 0}, roles["unk"], lowercase, strip_accents)
    counts = _count(kind, texts, backend)
    types = [t for t, count in counts.items() if count >= min_frequency and t not in specials]
    types.sort(key=lambda t: (-counts[t], t))
    if not types:
        raise FirthError(
            f"the text holds no {kind} that occurs at least {min_frequency} times; give more text, "
            "or a smaller min_frequency"
        )
    vocab = {token: number for number, token in enumerate([*specials, *types][:vocab_size])}
    backend = _backend(kind, vocab, roles["unk"], lowercase, strip_accents)
    backend.add_special_tokens(specials)
    config = {"eos_token": END, **{f"{role}_token": token for role, token in roles.items()}}
    return SubwordTokenizer(backend, config)


def word_vocabulary(words: Sequence[str]) -> SubwordTokenizer:
    """A vocabulary of these words by id; the first two are `<unk>` and `<eos>`.

    Raises FirthError for a word that stands there twice.
    """
    vocab = {word: number for number, word in enumerate(words)}
    if len(vocab) != len(words):
        twice = next(word for number, word in enumerate(words) if vocab[word] != number)
        raise FirthError(f"the vocabulary has {twice!r} twice")
    backend = _backend("word", vocab, UNKNOWN, False, False)
    backend.add_special_tokens([UNKNOWN, END])
    return SubwordTokenizer(backend, {"eos_token": END, "unk_token": UNKNOWN})


def _backend(
    kind: str, vocab: dict[str, int], unk: str, lowercase: bool, strip_accents: bool
) -> Backend:
    backend = Backend(models.WordLevel(vocab, unk_token=unk))
    if lowercase or strip_accents:
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=False,
            handle_chinese_chars=False,
            strip_accents=strip_accents,
            lowercase=lowercase,
        )
    if kind == "word":
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), "isolated")
        backend.decoder = decoders.Fuse()
    return backend


def _count(kind: str, texts: Iterable[str], backend: Backend) -> Counter:
    """The frequency of each type; the pipeline runs once for each distinct piece of the text."""
    pieces, types = Counter(), Counter()
    for text in texts:
        pieces.update(text.split(" ") if kind == "word" else text)
    for piece, count in pieces.items():
        normal = backend.normalizer.normalize_str(piece) if backend.normalizer else piece
        for token, _ in backend.pre_tokenizer.pre_tokenize_str(normal):
            types[token] += count
    return types
