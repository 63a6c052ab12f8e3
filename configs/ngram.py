"""N-gram models: modified Kneser-Ney and its ancestors, counted in one pass.

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output train/
    firth prepare --input ptb.test.txt --tokenizer tok/ --sentences line --output test/
    firth train --config ngram.py:order=5 --workdir runs/kn5 --config.data.store=train/
    firth evaluate --workdir runs/kn5 --config.data.heldout_store=test/

Arguments: `ngram.py:order=N,smoothing=NAME`. NAME is mle, add_k, katz, absolute, kneser_ney or
modified_kneser_ney.

A sentence follows `<s>` and ends with the tokenizer's end token. The vocabulary is the tokenizer's:
`firth prepare --vocab-size N` limits it, and other words are then the unknown word.

Expected on the Penn Treebank's test set, within a minute on one core: modified Kneser-Ney 148.28
(order 3) and 141.19 (order 5), katz 165.2 and 162.3 (Mikolov et al. 2011, table 1).
"""

import ml_collections

from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, order=5, smoothing="modified_kneser_ney")
    c = ml_collections.ConfigDict()

    c.model = dict(
        family="ngram",
        order=arg.order,  # words of the longest n-grams
        smoothing=arg.smoothing,
        add=1.0,  # of add_k: what is added to every count
        discount_fallback=(),  # "(0.5,1.0,1.5)": where the counts give no discounts
        interpolate_unigrams=True,  # False: what they lose goes to unseen words, as in SRILM
        prune=(),  # "(0,0,1)": no 3-grams and longer ones that occur only once
        good_turing_max=(1, 7),  # of katz, an order each: the largest count that is discounted
        good_turing_min=(1, 1, 2),  # of katz, an order each: the smallest count that is kept
    )

    c.data = dict(
        store="",  # what `firth prepare` wrote
        heldout_store="",  # another store, to measure
        ends="sentence",  # what ends with the end token; or "document"
    )
    return c
