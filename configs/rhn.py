"""RHN: a recurrent highway network as a language model (Zilly et al. 2017).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config rhn.py:medium --workdir runs/rhn --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `rhn.py:SIZE[,length=N][,tokens=N]`. SIZE is tiny, small or medium, the paper's best with
10 highway layers of 830 units; `length` is that of a window, 35 by default; `tokens` are those of
the text that is trained on, ends of sentences included: 929,589 on the Penn Treebank.

tiny is for trying things out: a few minutes on one core. medium wants a GPU: 500 epochs. The
paper's loss is summed over the places of a window, Firth's is a mean. So the rate here is the
paper's times the length; norm and L2 are divided by it.

Expected perplexity of medium on the Penn Treebank: 67.9 on the validation text, 65.4 on the test
text (tied weights; Zilly et al. 2017, table 1).
"""

from firth.configs import common
from firth.models.recurrent.rhn import size
from firth.recipe import parse_arg

ROWS = 20


def get_config(arg=None):
    arg = parse_arg(arg, size="medium", length=35, tokens=common.PENN_TREEBANK)
    epoch = max((arg.tokens // ROWS - 1) // arg.length, 1)  # steps
    epochs, dropout = (500, 1.0) if arg.size == "medium" else (20, 0.0)
    c = common.pretraining(steps=epochs * epoch, batch_size=ROWS)  # rows are streams

    c.model = common.execution(
        family="rhn",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        tied_softmax=True,  # the softmax uses the embeddings
        word_dropout=0.25 * dropout,  # of whole words, one mask for a row
        embedding_dropout=0.75 * dropout,  # one mask for all places of a row, as those below
        state_dropout=0.25 * dropout,  # of what each highway layer reads of the state
        output_dropout=0.75 * dropout,
        init_range=0.04,  # of all parameters, to both sides of zero
        gate_bias=-2.0,  # initial; below 0 the state is mostly carried
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
        l2=1e-7 / arg.length,  # of a loss summed over the window: 1e-7 times half the squares
        clip_norm=10.0 / arg.length,  # 10 of a loss summed over the window
    )
    c.schedule = dict(
        name="inverse_epoch",
        lr=0.2 * arg.length,  # .2 of a loss summed over the window
        decay=1.02,
        hold=20,  # epochs
        steps_per_epoch=epoch,
    )

    c.eval.update(every=epoch, batch_size=ROWS, batches=1000)
    c.checkpoint.update(every=0)
    return c
