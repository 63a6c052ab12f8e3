"""ELMo: a bidirectional language model over characters (Peters et al. 2018).

    firth prepare --input train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output train/
    firth prepare --input test.txt --tokenizer tok/ --sentences line --output test/
    firth train --config elmo.py:small --workdir runs/elmo --config.data.store=train/ \\
        --config.data.heldout_store=test/
    firth convert --from runs/elmo --to elmo/

Arguments: `elmo.py:SIZE[,length=N][,tokens=N]`. SIZE is tiny, small, medium or original; `length`
is that of a window, 20; `tokens` are those of the text that is trained on, from which epochs are
counted: 768,648,884 in the One Billion Word Benchmark. The text has one sentence a line, its tokens
divided by spaces.

tiny is for trying things out: some minutes on two cores. The released models took two weeks on
three GPUs of 2017; `firth plan --config elmo.py:original --chips h100` says what it would be now.

The released code multiplies the gradient by the length of a window, 20. With Adagrad that is the
same as gradients as they are, an initial accumulator of 1 / 20^2 and a clip at 10 / 20.

Expected: perplexity 39.7 on the benchmark's held-out text after 10 epochs, the average of both
directions (original). Parameters without the softmax: 13.6, 28.0 and 93.6 million.

Departures from the paper and its code:
- Streams: the code fills each row with sentences as they come, and the two directions draw theirs
  apart; here both directions read the same sentences, cut into rows of equal length each epoch.
- Unknown words: the code reads their characters; a store keeps what its vocabulary has, and others
  are read as the characters of "<unk>".
"""

from firth.configs import common
from firth.models.elmo.bilm import size
from firth.recipe import parse_arg

BILLION_WORDS = 768.648884e6
# size -> (rows, epochs, steps between evaluations)
TRAINING = {
    "tiny": (32, 3, 500),
    "small": (384, 10, 10_000),
    "medium": (384, 10, 10_000),
    "original": (384, 10, 10_000),
}


def get_config(arg=None):
    arg = parse_arg(arg, size="original", length=20, tokens=0)
    dimensions = size(arg.size)
    rows, epochs, every = TRAINING[arg.size]
    tokens = arg.tokens or (0.4e6 if arg.size == "tiny" else BILLION_WORDS)
    epoch = max(int(tokens / (rows * arg.length)), 1)  # steps
    c = common.pretraining(steps=epochs * epoch, batch_size=rows)  # rows are streams

    c.model = common.execution(
        family="elmo",
        vocab_size=0,  # 0: that of the tokenizer; of the softmax alone
        **dimensions,  # cells, width of both directions, highway layers; filters of tiny
        num_layers=2,
        max_characters=50,  # of a word, its two marks included
        character_width=16,
        cell_clip=3.0,  # 0: none
        projection_clip=3.0,
        skip_connections=True,
        dropout=0.1,  # on the input of each layer and on what the softmax reads
    )

    c.data = common.split_data(
        view="both_ways",
        shuffle=True,  # sentences, in another order each epoch
        length=arg.length,
        max_characters=50,
    )

    c.objective = dict(
        name="bilm",
        samples=8192,  # words that stand for the vocabulary in training; 0: all of them
    )

    c.optimizer = common.optimizer(
        name="adagrad",
        initial_accumulator=1.0 / arg.length**2,  # of a gradient times the length: 1
        weight_decay=0.0,
        decay_exclude=(),
        clip_norm=10.0 / arg.length,  # of a gradient times the length: 10
    )
    c.schedule = dict(name="constant", lr=0.2)

    c.eval.update(every=every, batch_size=rows)
    return c
