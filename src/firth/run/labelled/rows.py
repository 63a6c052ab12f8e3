"""The rows of texts with a label each: in buckets of lengths, or packed."""

import functools
from collections.abc import Mapping

from firth.data.packing.rows import packed_splits
from firth.data.tasks.buckets import Buckets, of_splits, tokenise
from firth.data.tasks.choices import tokenise_choices
from firth.data.tasks.task import Examples
from firth.data.views.base import View
from firth.models.model import family
from firth.objectives.finetune import check_packing
from firth.tokenizers.base import Tokenizer


def read_rows(
    splits: Mapping[str, Examples], tokenizer: Tokenizer, spec: dict, config, multiple: int
) -> tuple[dict[str, View], dict[str, int], tuple[str, ...]]:
    """(the view of each split, how many of its examples lose tokens, lines to read).

    `spec` is the model section; the data section says how the texts are read. `multiple` is that of
    the number of packed rows in a batch, for devices and micro-batches.

    Raises FirthError for texts that cannot be read so, and for `data.packed` of a body, a task or
    an objective that cannot have it.
    """
    data, packed = config.data, config.data.get("packed", False)
    if packed:
        check_packing(spec, config.objective.get("both_orders", False))
    tokenised = {}
    for split, examples in splits.items():
        reading = (tokenizer, data.length, family(spec["family"]).SPECIAL_TOKENS)
        if examples.choices:
            texts = (examples.texts_a, examples.choices, examples.places)
            tokenised[split] = tokenise_choices(*texts, *reading, examples.labels)
        else:
            tokenised[split] = tokenise(examples, *reading)
    truncated = {split: found.truncated for split, found in tokenised.items()}
    if not packed:
        return of_splits(functools.partial(Buckets, seed=config.seed), tokenised), truncated, ()
    rows = packed_splits(tokenised, config.seed, multiple)
    train, size = rows["train"], config.batch_size
    number, steps = train.rows(size), train.steps_per_epoch(size)
    said = (
        f"packed: a batch of {number:,} rows of {data.length} tokens has about "
        f"{train.epoch_size() / steps:.0f} examples, and {train.pad_fraction(size):.1%} padding"
    )
    return rows, truncated, (said,)
