"""RNN: Elman's network as a language model, one layer of sigmoid units (Mikolov et al. 2010).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config rnn.py:small --workdir runs/rnn --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `rnn.py:SIZE[,length=N][,rows=N][,classes=N][,tokens=N]`. SIZE is tiny
(128 units), small (200, as in Mikolov et al. 2011) or medium (500); `length` is that of a window,
10 by default; `classes=100` divides the words into classes by frequency, so that a step scores 100
classes and the words of one; `tokens` are those of the text that is trained on, ends of sentences
included: 929,589 on the Penn Treebank.

One row reads the text from its first word to its last, ten words an update, on one device. Its
state goes on from window to window and is part of a checkpoint. `rows=8` reads eight parts of the
text side by side, which takes a quarter of the time. The loss of the released code is a sum over
the words, Firth's their mean. So the rate here is the code's times the words of an update; the
decay is divided by them, and the norm by those of a row.

Once the held-out text improves by less than a factor of 1.003, the rate is halved after every
epoch. At the second time the run ends, after 10 to 20 epochs of the 50 that `steps` allows.

Expected test perplexity on the Penn Treebank: small 124.7 (Mikolov et al. 2011).

Departures from the paper and its code:
- Backpropagation: the code goes back four or five steps beyond a block of ten. Here it ends where
  the window begins.
- Updates: the code updates the weights of the softmax after every word; here all weights are
  updated after each window.
- Initial state: the code begins with .1 in all units; here the state is zero, in each epoch.
- Clipping: the code clips each number of a gradient at 15; here the whole gradient has this norm,
  for each row.
- Initial values: the code adds three uniform numbers below .1; here they are normal with the same
  deviation.
"""

from firth.configs import common
from firth.models.recurrent.elman import size
from firth.recipe import parse_arg

EPOCHS = 50  # at most


def get_config(arg=None):
    arg = parse_arg(arg, size="small", length=10, rows=1, classes=0, tokens=common.PENN_TREEBANK)
    words = arg.length * arg.rows  # of an update
    epoch = max((arg.tokens // arg.rows - 1) // arg.length, 1)  # steps
    c = common.pretraining(steps=EPOCHS * epoch, batch_size=arg.rows)

    c.model = common.execution(
        family="rnn",
        vocab_size=0,  # 0: that of the tokenizer
        num_layers=1,
        **size(arg.size),
        init_stddev=0.1,
        classes=arg.classes,  # of words, in the softmax; 0: none
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
        weight_decay=1e-7 / words,  # 1e-7 of a loss summed over the words
        decay_exclude=(),
        clip_norm=15.0 / arg.length,  # 15 of a loss summed over the words of a row
    )
    c.schedule = dict(
        name="constant",
        lr=0.1 * words,  # .1 of a loss summed over the words
    )
    c.plateau = dict(
        name="halving",  # halves the rate once the held-out loss hardly falls, and ends the run
        metric="heldout/lm_loss",
        improvement=1.003,  # a smaller factor is hardly any
    )

    c.eval.update(every=epoch, batch_size=1, batches=10_000)
    c.checkpoint.update(every=0)
    return c
