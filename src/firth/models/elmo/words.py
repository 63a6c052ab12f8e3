"""Words in batches of like length, for ELMo's character CNN to read each of them once.

W characters of a word.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from firth.errors import FirthError
from firth.layers.characters.cnn import places_needed
from firth.models.elmo.bilm import Config
from firth.tokenizers.spelling import CHARACTERS, spell

WORDS = 128  # read at a time
PLACES = 4  # numbers of characters that are computed are multiples of this


def check_characters(config: Config, source) -> None:
    """Raise FirthError, naming `source`, for a model whose characters are not those of `spell`."""
    if config.characters != CHARACTERS:
        raise FirthError(
            f"{source} has {config.characters} characters, not the {CHARACTERS} of ELMo's words; "
            "give character ids of your own to the model itself"
        )


def word_batches(words: Sequence[str], config: Config) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(numbers of words, their character ids int32 [128, W]), the shortest words first.

    The ids of a last batch that is not full end in zeros, which are no word; so are those of "". A
    word of more bytes than `max_characters` - 2 loses the last ones, as in the released code.
    """
    ids, length = spell(words, config.max_characters)
    ids[[not word for word in words]] = 0
    order = np.argsort(length, kind="stable")
    for begin in range(0, len(order), WORDS):
        chosen = order[begin : begin + WORDS]
        needed = -(-int(length[chosen[-1]]) // PLACES) * PLACES
        places = places_needed(needed, config.filters, config.max_characters)
        batch = np.zeros((WORDS, places), np.int32)
        batch[: len(chosen)] = ids[chosen, :places]
        yield chosen, batch


def read(model, characters_MW):
    """The vectors of words float32 [M, P] of a bound model."""
    return model.encoder.embed(characters_MW[None])[0].astype(np.float32)
