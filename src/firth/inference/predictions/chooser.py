"""What a model says of questions with choices: the probability of each choice.

N questions, C choices, R = N C rows.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import softmax

from firth.data.tasks.choices import tokenise_choices
from firth.errors import FirthError
from firth.inference.predictions.classifier import CHOICE, Classifier
from firth.inference.predictions.reading import Reading
from firth.models.model import family
from firth.weights.read import has_head

if TYPE_CHECKING:
    from firth.inference.encoder import Encoder


def is_chooser(source) -> bool:
    """Whether the name of a model, as for `read_model`, is that of one that chooses."""
    return has_head(source, CHOICE, "ForMultipleChoice")


class Chooser(Classifier):
    """A model that chooses; its labels are the numbers of the choices, from 0.

    It reads each choice alone, so that the questions may have another number of choices than those
    of training.
    """

    def __init__(self, encoder: "Encoder", count: int):
        """`count` is that of the choices. Raises FirthError for a model that cannot choose."""
        saved = encoder.saved
        if CHOICE not in saved.heads:
            raise FirthError(f"{saved.source} has no head for choices ({', '.join(saved.heads)})")
        if saved.tokenizer_path is None:
            raise FirthError(f"{saved.source} holds no tokenizer, which texts need")
        self._open(encoder, CHOICE, tuple(map(str, range(count))), outputs=1)

    def __call__(
        self,
        texts: Sequence[tuple[str, Sequence[str]]],
        reading: Reading,
        names: Sequence[str] | None = None,
    ) -> tuple[np.ndarray, int]:
        """(probabilities [N, C] as float64, number of questions that lost tokens).

        `texts` are (context, the text beside it for each choice); see
        `firth.data.tasks.choices.beside`. `names` are those of the questions in errors.

        Raises FirthError for no questions, another number of choices, a text without tokens, an
        output that is not finite, and a reading that the model does not allow.
        """
        names = names or [f"question {i}" for i in range(len(texts))]
        limit, count = reading.max_length or self.length, len(self.labels)
        if reading.long != "truncate":
            raise FirthError(f"long={reading.long}: a model that chooses cuts long contexts")
        if reading.packed:
            raise FirthError("packed: a model that chooses reads each choice in a row of its own")
        if limit > self.max_length:
            raise FirthError(f"max_length={limit}: the model has {self.max_length} positions")
        if not texts:
            raise FirthError("there are no questions")
        for name, (_, choices) in zip(names, texts, strict=True):
            if len(choices) != count:
                raise FirthError(f"{name} has {len(choices)} choices, expected {count}")
        contexts, choices = zip(*texts, strict=True)
        roles = family(self.encoder.saved.spec["family"]).SPECIAL_TOKENS
        rows = tokenise_choices(contexts, choices, names, self.encoder.tokenizer, limit, roles)
        ids = np.split(rows.tokens, rows.offsets[1:-1])
        logits_R1 = self._run(list(zip(ids, rows.second, strict=True)), reading.batch_size)
        outputs_NC = softmax(logits_R1.reshape(-1, count), axis=1)
        self._check_finite(outputs_NC, names)
        return outputs_NC, rows.truncated
