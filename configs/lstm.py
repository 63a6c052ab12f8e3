"""LSTM: a recurrent language model, its dropout on vertical edges alone (Zaremba et al. 2014).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config lstm.py:small --workdir runs/lstm --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `lstm.py:SIZE[,length=N][,tokens=N]`. SIZE is tiny, small, medium or large; `length` is
that of a window in training, 0 for the size's own; `tokens` are those of the text that is trained
on, ends of sentences included, from which epochs are counted: 929,589 on the Penn Treebank.

tiny is for trying things out: a few minutes on one core. small takes about an hour on two cores;
medium and large want a GPU. The state of a row goes on from batch to batch, is zero where an epoch
begins, and is part of a checkpoint.

The paper's loss is summed over the T places of a window, and averaged over rows. Firth's is
averaged over both. So the rate here is the paper's times T, and gradients are clipped at the
paper's norm divided by T; the updates are the same.

Expected test perplexity on the Penn Treebank: small 114.5 (115.9 in the TensorFlow code), medium
82.7 (82.1), large 78.4 (78.3). The test set is read in one row:
`firth evaluate --workdir runs/lstm --config.data.heldout_store=ptb/test/ --config.eval.batch_size=1
--config.eval.batches=1000000`.

Departures from the paper and its code:
- Decay of medium: the paper divides the rate by 1.2 an epoch; here it is multiplied by .8, as in
  the TensorFlow code, whose figure is the better one.
- One bias: the Lua code has two for a layer, which add up; here there is one, as in TensorFlow.
"""

from firth.configs import common
from firth.models.recurrent.lstm import size
from firth.recipe import parse_arg

ROWS = 20
# size -> (length, epochs, those at the full rate, factor of the rate in each one after them,
# dropout, range of the initial values, greatest norm of the gradient)
TRAINING = {
    "tiny": (20, 4, 2, 0.5, 0.0, 0.1, 5),
    "small": (20, 13, 4, 0.5, 0.0, 0.1, 5),
    "medium": (35, 39, 6, 0.8, 0.5, 0.05, 5),
    "large": (35, 55, 14, 1 / 1.15, 0.65, 0.04, 10),
}


def get_config(arg=None):
    arg = parse_arg(arg, size="medium", length=0, tokens=common.PENN_TREEBANK)
    dimensions = size(arg.size)
    window, epochs, hold, decay, dropout, limit, norm = TRAINING[arg.size]
    length = arg.length or window
    epoch = max((arg.tokens // ROWS - 1) // length, 1)  # steps
    c = common.pretraining(steps=epochs * epoch, batch_size=ROWS)  # rows are streams

    c.model = common.execution(
        family="lstm",
        vocab_size=0,  # 0: that of the tokenizer
        **dimensions,
        embedding_size=0,  # 0: as the layers
        tied_softmax=False,  # True: the softmax uses the embeddings
        capped_input_gate=False,  # True: the input gate is min(1 - f, i) (Melis et al. 2017)
        sums_layers=False,  # True: the output is the sum of all layers'
        dropout=dropout,  # between layers
        embedding_dropout=dropout,
        output_dropout=dropout,
        state_dropout=0.0,  # of the state that a step reads, one mask for a row
        init_range=limit,  # of all parameters, to both sides of zero
        forget_bias=0.0,  # added to the forget gate's initial bias
    )

    c.data = common.split_data(
        heldout=0.0,  # the Penn Treebank comes with test sets
        view="streams",
        shuffle=False,
        ends="sentence",  # where the end-of-text token goes; or "document", "none"
        length=length,
    )

    c.objective = dict(name="clm")

    c.optimizer = common.optimizer(
        name="sgd",
        weight_decay=0.0,
        decay_exclude=(),
        clip_norm=norm / length,  # of a loss summed over the window: `norm`
    )
    c.schedule = dict(
        name="step_decay",
        lr=1.0 * length,  # of a loss summed over the window: 1
        decay=decay,
        hold=hold,  # epochs
        steps_per_epoch=epoch,
    )

    c.eval.update(every=epoch, batch_size=ROWS, batches=1000)
    c.checkpoint.update(every=0)
    return c
