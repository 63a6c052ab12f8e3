"""Character-aware language model: words from their characters, then an LSTM (Kim et al. 2016).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config char_cnn_lstm.py:small --workdir runs/kim --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `char_cnn_lstm.py:SIZE[,length=N][,tokens=N]`. SIZE is tiny, small or large; `length` is
that of a window in training; `tokens` are those of the text that is trained on, ends of sentences
included, from which epochs are counted: 929,589 on the Penn Treebank.

Words are read as characters and predicted as words of a closed vocabulary, that of the tokenizer.

tiny is for trying things out. small has 5 M parameters and wants many hours on one core or a GPU;
large has 19 M and wants a GPU. As in lstm.py, the rate is the paper's times the length of a window,
and the norm of the gradient its divided by it, since Firth's loss is a mean.

Expected test perplexity on the Penn Treebank: small 92.3, large 78.9.
"""

from firth.configs import common
from firth.models.recurrent.char_cnn_lstm import size
from firth.recipe import parse_arg

ROWS = 20
EPOCHS = {"tiny": 6, "small": 25, "large": 25}
DROPOUT = {"tiny": 0.0, "small": 0.5, "large": 0.5}


def get_config(arg=None):
    arg = parse_arg(arg, size="small", length=35, tokens=common.PENN_TREEBANK)
    dimensions = size(arg.size)
    epoch = max((arg.tokens // ROWS - 1) // arg.length, 1)  # steps
    c = common.pretraining(steps=EPOCHS[arg.size] * epoch, batch_size=ROWS)  # rows are streams

    c.model = common.execution(
        family="char_cnn_lstm",
        vocab_size=0,  # 0: that of the tokenizer
        num_layers=2,
        **dimensions,
        character_size=15,  # width of a character's embedding
        most_filters=200,  # of one width; else filters_per_width times the width
        dropout=DROPOUT[arg.size],  # between layers
        output_dropout=DROPOUT[arg.size],
        init_range=0.05,  # of all parameters, to both sides of zero
        forget_bias=0.0,  # added to the forget gate's initial bias
    )

    c.data = common.split_data(
        heldout=0.0,  # the Penn Treebank comes with test sets
        view="streams",
        shuffle=False,
        ends="sentence",  # where the end-of-text token goes; or "document", "none"
        length=arg.length,
    )

    c.objective = dict(name="clm")

    c.optimizer = common.optimizer(
        name="sgd",
        weight_decay=0.0,
        decay_exclude=(),
        clip_norm=5 / arg.length,  # of a loss summed over the window: 5
    )
    c.schedule = dict(name="constant", lr=1.0 * arg.length)  # of a loss summed over the window: 1
    c.plateau = dict(
        name="perplexity",  # multiplies the rate where an epoch lowers the perplexity too little
        metric="heldout/lm_loss",
        factor_of_decay=0.5,
        least_gain=1.0,  # of perplexity, from one evaluation to the next
    )

    c.eval.update(every=epoch, batch_size=ROWS, batches=1000)
    c.checkpoint.update(every=0, best="heldout/lm_loss", best_mode="min")
    return c
