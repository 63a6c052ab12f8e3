"""Skip-gram and CBOW word vectors (Mikolov et al. 2013), by the settings of the word2vec tool.

    firth prepare --input text.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output train/
    firth train --config word2vec.py:skipgram --workdir runs/sg --config.data.store=train/
    firth neighbours --model runs/sg vase broke

Arguments: `word2vec.py:skipgram` or `word2vec.py:cbow`, and `loss=negative` or `loss=hierarchical`.

Words are what the tokenizer makes of the text: lower-case it and put spaces around punctuation
before, if that is what you want. A core takes half a million words a second or so
(skip-gram, 100 dimensions).

Departures from the paper and the tool:
- Shared negatives: the tool draws five words for each pair. Here 16 successive words share 40
  draws, each with the weight that gives the same expectation: a step is a few matrix products.
- Steps: threads of the tool write without locks. Here 128 words (hierarchical softmax: 32) are one
  step, and a seed gives the same bytes.
- Sigmoid: the tool looks it up in a table that ends at 6. Here it is computed.
- Sentences: the tool ends them at line ends and after 1,000 words. Here they are the store's.
"""

import ml_collections

from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, architecture="skipgram", loss="negative")
    c = ml_collections.ConfigDict()

    c.model = dict(
        family="word2vec",
        architecture=arg.architecture,  # skipgram; cbow: a word from the mean of its window
        loss=arg.loss,  # negative; hierarchical: softmax along a Huffman code
        dim=100,  # of the vectors
        window=5,  # words on each side, at most; each place draws its own number from 1 on
        negative=5,  # samples of noise a pair, for loss=negative
        sample=1e-3,  # words more frequent than this are thinned out; 0 keeps all
        min_count=5,  # rarer words get no vector, and are as if they were not there
        max_words=0,  # of the most frequent to keep; 0 is all
    )

    c.data = dict(
        store="",  # what `firth prepare` wrote
        within="sentence",  # what no window leaves; or "document"
    )

    c.epochs = 5
    c.lr = 0.05 if arg.architecture == "cbow" else 0.025  # falls to zero with the words read
    c.seed = 0
    c.checkpoint = dict(minutes=5.0)  # between saves
    return c
