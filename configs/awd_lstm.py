"""AWD-LSTM: dropped recurrent weights and averaged parameters (Merity et al. 2018).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config awd_lstm.py:medium --workdir runs/awd --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `awd_lstm.py:SIZE[,length=N][,tokens=N][,finetune=DIR]`. SIZE is tiny, small or medium,
the paper's; `length` is that of a window, 70 by default; `tokens` are those of the text that is
trained on, ends of sentences included: 929,589 on the Penn Treebank. `finetune=runs/awd` begins
with the weights of a run and averages from the first step on, until the held-out loss no longer
falls: the second stage of the released code.

Once the held-out loss is above the lowest one of all epochs but the last five, the run averages the
parameters of all steps from there on, and is measured by the mean (NT-ASGD). tiny is for trying
things out: a few minutes on one core. medium wants a GPU: 500 epochs are some 20 hours on one.

Expected perplexity of medium on the Penn Treebank, validation and test: 61.2 and 58.8, 58.8 and
56.5 after the second stage, 53.2 and 52.5 with the neural cache of the released code:
`firth evaluate --models runs/awd --data ptb/test/ --tune ptb/valid/ --neural-cache 500`.

Departures from the paper and its code:
- Windows: the code draws the length of every window, about 70 or 35, and scales the rate with it.
  Here all windows have one length and the rate is constant, but the first window of an epoch begins
  at a random place, so that the places where gradients end change from epoch to epoch.
- One bias: the code has two for a layer, which add up; here there is one.
"""

from firth.configs import common
from firth.models.recurrent.awd_lstm import size
from firth.recipe import parse_arg

ROWS = 20


def get_config(arg=None):
    arg = parse_arg(arg, size="medium", length=70, tokens=common.PENN_TREEBANK, finetune="")
    epoch = max((arg.tokens // ROWS - arg.length) // arg.length, 1)  # steps
    epochs = 500 if arg.size == "medium" else 30
    c = common.pretraining(steps=epochs * epoch, batch_size=ROWS)  # rows are streams
    c.init_from = arg.finetune

    c.model = common.execution(
        family="awd_lstm",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        dropout=0.25,  # between layers, one mask for all places of a row
        embedding_dropout=0.4,  # on embeddings, one mask for all places of a row
        output_dropout=0.4,  # before the softmax, one mask for all places of a row
        word_dropout=0.1,  # of whole words, one mask for a batch
        weight_dropout=0.5,  # of recurrent kernels, one mask for a batch
        init_range=0.1,  # of the embeddings, to both sides of zero
    )

    c.data = common.split_data(
        heldout=0.0,  # the Penn Treebank comes with test sets
        view="streams",
        shuffle=False,
        ends="sentence",  # where the end-of-text token goes; or "document", "none"
        length=arg.length,
        random_start=True,  # each epoch begins at another place
    )

    c.objective = dict(
        name="clm",
        activation=2.0,  # times the mean square of the last layer's output
        temporal=1.0,  # times that of its differences from place to place
    )

    c.optimizer = common.optimizer(
        name="sgd",
        weight_decay=1.2e-6,
        decay_exclude=(),
        clip_norm=0.25,
    )
    c.schedule = dict(name="constant", lr=30.0)
    c.plateau = dict(
        name="nt_asgd",  # averages the parameters once the held-out loss stops falling
        metric="heldout/lm_loss",
        patience=5,  # evaluations
        from_start=bool(arg.finetune),
    )

    c.eval.update(every=epoch, batch_size=10, batches=10_000)
    c.checkpoint.update(every=0)
    return c
