"""Maximum-entropy n-gram models: log-linear, with a weight for every n-gram (Rosenfeld 1996).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output train/
    firth prepare --input ptb.test.txt --tokenizer tok/ --sentences line --output test/
    firth train --config maxent.py:order=5 --workdir runs/me5 --config.data.store=train/
    firth evaluate --workdir runs/me5 --config.data.heldout_store=test/

Arguments: `maxent.py:order=N`.

p(w | h) is the exponential of the sum of the weights of all n-grams that end h w, over their sum
for all words. L-BFGS finds the likeliest weights under a Gaussian prior. Sentences, vocabulary and
the files of the model are those of ngram.py, and all commands for n-grams work.

Expected on the Penn Treebank's test set: 142.1 for order 5 (Mikolov et al. 2011, table 1). The
penalties here are the best on its validation text, see experiments/ptb.
"""

import ml_collections

from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, order=5)
    c = ml_collections.ConfigDict()

    c.model = dict(
        family="ngram",
        smoothing="maximum_entropy",
        order=arg.order,  # words of the longest n-grams
        l2=(0.1, 0.2, 0.4, 0.6, 0.8),  # cost of half the square of a weight, in nats, an order each
        minimum=(1,),  # "(1,1,2)": no weights of 3-grams and longer ones that occur only once
        hash_bits=0,  # 22: all n-grams from order 2 on share 2^22 weights, by a hash
        iterations=300,  # of L-BFGS, at most
        tolerance=1e-6,  # it ends when an iteration gains a smaller share of the objective
    )

    c.data = dict(
        store="",  # what `firth prepare` wrote
        heldout_store="",  # another store, to measure
        ends="sentence",  # what ends with the end token; or "document"
    )
    return c
