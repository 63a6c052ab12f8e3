"""Feed-forward and log-bilinear language models (Bengio et al. 2003; Mnih and Hinton 2007).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output valid/
    firth train --config feedforward.py:small --workdir runs/feedforward \\
        --config.data.store=train/ --config.data.heldout_store=valid/
    firth evaluate --models runs/feedforward --data test/

Arguments: `feedforward.py:SIZE[,kind=KIND][,length=N][,tokens=N]`. SIZE is tiny, small, medium or
base (MLP10 of Bengio et al.). KIND is tanh, direct (with direct connections from the embeddings to
the words) or log_bilinear, whose hidden size is that of the embeddings. `length` is that of a row,
which begins without context. `tokens` are those of the text that is trained on, ends of sentences
included, from which epochs are counted: 929,589 on the Penn Treebank.

Expected on the Penn Treebank's test set: about 140.2 for a feed-forward network and 144.5 for the
log-bilinear one (Mikolov et al. 2011, table 1).
experiments/ptb says what this recipe has reached.

Departures from the paper and its code:
- Schedule: both papers take gradient descent over tens of epochs, with a rate that hardly falls.
  Here it falls to zero by a cosine, in eight epochs, and the norm of the gradient is limited.
- Dropout: both papers stop early and have a decay of the weights. Here there is dropout too.
- Windows at the beginning of a row: the papers' window runs through the whole corpus. Here a row
  begins with a vector that is learned, and 3 of its words lack a part of their context.
"""

from firth.configs import common
from firth.errors import FirthError
from firth.models.feedforward.nplm import size
from firth.recipe import parse_arg

ROWS, EPOCHS = 16, 8
KINDS = {
    "tanh": dict(activation="tanh"),
    "direct": dict(activation="tanh", direct=True),
    "log_bilinear": dict(activation="linear", tied_softmax=True),
}


def get_config(arg=None):
    arg = parse_arg(arg, size="small", kind="tanh", length=32, tokens=common.PENN_TREEBANK)
    if arg.kind not in KINDS:
        raise FirthError(f"kind={arg.kind!r} is unknown; choose one of {', '.join(KINDS)}")
    epoch = max((arg.tokens // ROWS - 1) // arg.length, 1)  # steps
    c = common.pretraining(steps=EPOCHS * epoch, batch_size=ROWS)  # rows are streams

    c.model = common.execution(
        family="feedforward",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        direct=False,
        tied_softmax=False,
        embedding_dropout=0.1,
        dropout=0.2,
        init_stddev=0.1,
    )
    c.model.update(KINDS[arg.kind])
    if c.model.direct:
        c.model.hidden_size += (c.model.order - 1) * c.model.embedding_size
    if c.model.tied_softmax:
        c.model.hidden_size = c.model.embedding_size

    c.data = common.split_data(
        heldout=0.0,  # the Penn Treebank comes with its own
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
        clip_norm=0.25,
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=10.0, warmup=0.02)

    c.eval.update(every=epoch, batch_size=ROWS, batches=1000)
    c.checkpoint.update(every=0, best="heldout/lm_loss", best_mode="min")
    return c
