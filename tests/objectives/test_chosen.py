"""What the recipes' objectives choose to predict of real text, with real vocabularies."""

import functools
import itertools
import json
import lzma
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers.quick import jit

from firth import recipe
from firth.data.views import create_view
from firth.data.views.base import Source
from firth.run.experiment import create_objective, model_spec
from firth.run.outline import stand_in_teacher
from firth.tokenizers.load import load_tokenizer, train_tokenizer

BERT, ROBERTA = "bert-base-uncased-vocab.txt", "roberta-base-vocab.json"
XLNET, ALBERT = "xlnet-base-cased-spiece.model", "a unigram vocabulary, trained on the text"
RECIPES = {  # recipe -> (vocabulary, changes)
    "bert.py:tiny,length=64": (BERT, {}),
    "bert.py:tiny,length=64,view=packed": (BERT, {"objective.masking": "word"}),
    "distilbert.py:tiny,teacher=assumed,length=64": (BERT, {}),
    "electra.py:tiny,length=64": (BERT, {}),
    "electra.py:tiny,length=65": (BERT, {"objective.legacy_with_replacement": True}),
    "electra.py:tiny,length=64,variant=mlm": (BERT, {"objective.masking": "span"}),
    "modernbert.py:tiny,length=64": (BERT, {}),
    "roberta.py:tiny,length=64": (ROBERTA, {}),
    "albert.py:tiny,length=64": (ALBERT, {}),
    "xlnet.py:tiny,length=64": (XLNET, {}),
    "xlnet.py:tiny,length=64,memory=0": (XLNET, {"objective.unit": "word"}),
}
ROWS = 96


@pytest.fixture(scope="module")
def corpus(shared_data):
    """Function from a vocabulary's name to (tokenizer, store) of 30 articles of Wikipedia."""
    with lzma.open(shared_data("wikipedia_en_sample/articles.jsonl.xz"), "rt") as lines:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 30)]
    documents = [[s for s in t.replace(". ", ".\n").split("\n") if s.strip()] for t in texts]
    sentences = list(itertools.chain(*documents))
    borders = np.cumsum([0, *map(len, documents)])

    @functools.cache
    def of(name):
        if name == ALBERT:
            tokenizer = train_tokenizer("unigram", sentences, 1000)
        else:
            tokenizer = load_tokenizer(shared_data(f"vocabs/{name}"))
        ids, lengths = tokenizer.encode_flat(sentences)
        return tokenizer, SimpleNamespace(
            tokens=ids, sentences=np.cumsum([0, *lengths]), documents=borders, digest=name
        )

    return of


@pytest.fixture(scope="module")
def learned(corpus):
    """Function from a recipe to (tokenizer, objective, rows as they were, rows to learn from)."""

    @functools.cache
    def of(name):
        vocabulary, changes = RECIPES[name]
        tokenizer, store = corpus(vocabulary)
        config = recipe.with_fields(recipe.read_recipe(name), changes)
        spec = model_spec(config, None, tokenizer)
        objective = create_objective(
            config.objective,
            tokenizer,
            body=spec,
            counts=lambda: np.bincount(store.tokens, minlength=tokenizer.vocab_size),
            load=lambda source: stand_in_teacher(spec),
        )
        objective.check(config.data)
        view = create_view(config.data, Source(store, tokenizer))
        rows = view.batch(0, ROWS)
        batch = jit(objective.corrupt)(rows, jax.random.key(0))
        return tokenizer, objective, rows, jax.device_get(batch)

    return of


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_chosen_is_text(learned, name):
    tokenizer, objective, rows, batch = learned(name)
    roles = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id, tokenizer.mask_id)
    cls_id, sep_id, pad_id, mask_id = roles
    assert (rows["tokens"] == sep_id).sum(1).min() >= 1 and (rows["tokens"] == cls_id).any(1).all()
    used = batch["target_weights"] > 0
    found = np.take_along_axis(rows["tokens"], batch["positions"], 1)
    np.testing.assert_array_equal(batch["targets"][used], found[used])
    assert np.take_along_axis(rows["mask"], batch["positions"], 1)[used].all()
    forbidden = {pad_id, mask_id} if name.startswith("roberta") else set(roles)
    assert not forbidden & set(found[used].tolist())
    # Close to what the recipe asks for; runs of whole words may leave a few slots empty.
    if name.startswith("xlnet"):  # so many a row, however long its text
        texts = (rows["mask"] & ~np.isin(rows["tokens"], roles)).sum(1)
        np.testing.assert_array_equal(used.sum(1), np.minimum(64 // 6, texts))
    else:
        share, rate = used.sum() / rows["mask"].sum(), getattr(objective, "masked", objective).rate
        assert 0.85 * rate < share < 1.05 * rate
    # Only what is chosen is changed, and never into padding.
    chosen = np.zeros(rows["mask"].shape, bool)
    np.put_along_axis(chosen, batch["positions"], True, 1)
    np.testing.assert_array_equal(batch["tokens"][~chosen], rows["tokens"][~chosen])


def test_roberta_chooses_special_tokens_as_often_as_others(learned):
    """fairseq masks <s> and </s> too, and puts none in by chance."""
    tokenizer, _, rows, batch = learned("roberta.py:tiny,length=64")
    special = (rows["tokens"] == tokenizer.cls_id) | (rows["tokens"] == tokenizer.sep_id)
    row, slot = np.nonzero(batch["target_weights"])
    chosen = np.zeros(special.shape, bool)
    chosen[row, batch["positions"][row, slot]] = True
    n = special.sum()
    assert abs(chosen[special].mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / n)
    put_in = batch["tokens"][chosen & (batch["tokens"] != rows["tokens"])]
    assert set(put_in[np.isin(put_in, list(tokenizer.special_ids))]) == {tokenizer.mask_id}


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("xlnet")])
def test_xlnets_runs_begin_words_in_both_directions(learned, name):
    """Runs of two targets or more, read in the order of the text."""
    tokenizer, objective, rows, batch = learned(name)
    borders = [0, objective.reuse, 64] if objective.reuse else [0, 64]
    begins = {False: [], True: []}
    for row, (first, stop) in itertools.product(range(ROWS), itertools.pairwise(borders)):
        backward = objective.backwards and row >= ROWS // 2
        chosen = np.zeros(64, bool)
        chosen[batch["positions"][row][batch["target_weights"][row] > 0]] = True
        turn = slice(None, None, -1 if backward else 1)
        tokens, run = rows["tokens"][row, first:stop][turn], chosen[first:stop][turn]
        starts = np.flatnonzero(np.diff(np.concatenate([[False], run]).astype(int)) == 1)
        for at in starts:
            if run[at : at + 2].sum() == 2:
                begins[backward].append(tokenizer.word_starts[tokens[at]])
    for backward in {False, objective.backwards}:
        assert len(begins[backward]) > 50 and np.mean(begins[backward]) > 0.9


def test_ngrams_of_albert_take_whole_words_and_lone_punctuation(learned):
    """What is next to a chosen token of the same word is chosen, and a full stop stands alone."""
    tokenizer, _, rows, batch = learned("albert.py:tiny,length=64")
    row, slot = np.nonzero(batch["target_weights"])
    chosen = np.zeros(rows["mask"].shape, bool)
    chosen[row, batch["positions"][row, slot]] = True
    special = np.isin(rows["tokens"], list(tokenizer.special_ids))
    # A text that is cut begins inside a word; [CLS] or [SEP] is before it.
    goes_on = ~tokenizer.word_starts[rows["tokens"]] & ~np.roll(special, 1, axis=1)
    before = np.roll(chosen, 1, axis=1)
    np.testing.assert_array_equal(chosen[goes_on], before[goes_on])
    stop = rows["tokens"] == tokenizer.id(".")
    assert stop.sum() > 50 and (chosen[stop] != before[stop]).sum() > 5
