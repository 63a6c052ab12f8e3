"""GloVe word vectors (Pennington et al. 2014): the logarithms of cooccurrence counts, factorised.

    firth train --config glove.py --workdir runs/glove --config.data.store=train/
    firth neighbours --model runs/glove vase broke

The pairs of words within a window are counted first, with the weight 1/distance. A vector is the
sum of a word's two vectors. A core takes half a million cells of the matrix a second or
so (100 dimensions).

Departures from the paper and the tool:
- Rates: the tool since 2019 leaves the rate out of the biases and puts it inside AdaGrad's sums of
  the vectors. Here it is as in the paper; `--config.model.legacy_rates=True` is the tool's.
- Steps: threads of the tool write without locks. Here 512 cells are one step, and a seed gives the
  same bytes.
- Unknown words: the tool adds a vector of `<unk>`, the mean of rare ones. Here is none.
"""

import ml_collections

from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, dim=50)
    c = ml_collections.ConfigDict()

    c.model = dict(
        family="glove",
        dim=arg.dim,  # of the vectors
        window=15,  # words on each side
        x_max=100.0,  # the count from which on a cell has full weight; 10 for a small corpus
        alpha=0.75,  # the weight is (count / x_max)^alpha below that
        min_count=5,  # rarer words get no vector, and are as if they were not there
        max_words=0,  # of the most frequent to keep; 0 is all
        legacy_rates=False,  # True: the rates of the tool since 2019
    )

    c.data = dict(
        store="",  # what `firth prepare` wrote
        within="sentence",  # what no window leaves; or "document"
    )

    c.epochs = 25
    c.lr = 0.05  # of AdaGrad
    c.seed = 0
    c.checkpoint = dict(minutes=5.0)  # between saves
    return c
