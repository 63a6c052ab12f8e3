"""Melis: LSTMs with tuned regularisation, on a budget of parameters (Melis et al. 2018).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config melis.py:10m_d1 --workdir runs/melis --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `melis.py:SIZE[,length=N]`. SIZE is 10m_d1 or 24m_d4, tuned on the Penn Treebank, 24m_d2,
tuned on WikiText-2, or tiny; `length` is that of a window, 35 by default.

The input gate is min(1 - f, i), the output is the sum of all layers', and the softmax uses the
embeddings, after a map down to their width. The rate drops to a tenth once 26 evaluations have
brought no lower held-out loss, and 30 more such evaluations end the run. The checkpoint with the
lowest loss is kept. tiny is for trying things out; the others want a GPU.

Expected perplexity, validation and test: 61.8 and 59.6 (10m_d1), 60.9 and 58.3 (24m_d4) on the Penn
Treebank, 69.1 and 65.9 (24m_d2) on WikiText-2.

Departures from the paper and its code:
- Initial values: the code draws kernels by their fan-in, embeddings by their fan-out, and an
  orthogonal map down. Here all are uniform, with about the deviation of the kernels.
- Resets: the code empties the state of a row with probability .01; here at the beginning of an
  epoch.
- Ramp-up: the code has a ramp-up of 60 evaluations before it may end a run; here there is none.
- Evaluation: the code tunes the temperature of the softmax on the validation text, and may average
  over dropout masks; here the temperature is 1 and dropout is off.
"""

from firth.configs import common
from firth.errors import FirthError
from firth.recipe import parse_arg

# size -> (layers, hidden size, embedding size, rate, dropout of the input, between layers, of the
# state, of the output, L2)
SIZES = {
    "tiny": (1, 128, 64, 0.004, 0.2, 0.0, 0.1, 0.2, 1e-5),
    "10m_d1": (
        *(1, 1194, 268, 0.00417865626514),
        *(0.579891622066, 0.0, 0.215256482363, 0.327008873224, 1.24350262922e-4),
    ),
    "24m_d4": (
        *(4, 723, 723, 0.00396024715155),
        *(0.633642196655, 0.309127420187, 0.64275187254, 0.700856506824, 7.44869103073e-5),
    ),
    "24m_d2": (
        *(2, 1227, 149, 0.00246041407809),
        *(0.484243571758, 0.0920244976878, 0.453888505697, 0.391492575407, 3.77565629606e-5),
    ),
}
TURN = 100  # steps between two evaluations


def get_config(arg=None):
    arg = parse_arg(arg, size="10m_d1", length=35)
    if arg.size not in SIZES:
        raise FirthError(f"Melis has no size {arg.size!r}; choose one of {', '.join(SIZES)}")
    layers, hidden, embedding, rate, embedded, between, state, output, l2 = SIZES[arg.size]
    turns = 1000 if arg.size != "tiny" else 50
    c = common.pretraining(steps=turns * TURN, batch_size=64)  # rows are streams

    c.model = common.execution(
        family="lstm",
        vocab_size=0,  # 0: that of the tokenizer
        num_layers=layers,
        hidden_size=hidden,
        embedding_size=embedding,
        tied_softmax=True,  # the softmax uses the embeddings, after a map down to their width
        capped_input_gate=True,  # the input gate is min(1 - f, i)
        sums_layers=True,  # the output is the sum of all layers'
        dropout=between,  # between layers
        embedding_dropout=embedded,
        output_dropout=output,
        state_dropout=state,  # of the state that a step reads, one mask for a row
        init_range=0.05,  # of all parameters, to both sides of zero
        forget_bias=1.0,  # added to the forget gate's initial bias
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
        name="adamw",
        b1=0.0,  # no momentum, as RMSProp
        b2=0.999,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.0,
        decay_exclude=(),
        l2=l2,  # of the loss: times half the squares of all parameters
        clip_norm=10.0,
    )
    c.schedule = dict(name="constant", lr=rate)
    c.plateau = dict(
        name="drop",  # drops the rate once, when the held-out loss stops falling, and then ends
        metric="heldout/lm_loss",
        factor_of_drop=0.1,
        patience=26,  # evaluations without a lower loss, before the drop
        latest=900,  # evaluation of the drop at the latest
        last_patience=30,  # evaluations without a lower loss, after the drop
    )

    c.eval.update(every=TURN, batch_size=64, batches=1000)
    c.checkpoint.update(every=0, best="heldout/lm_loss", best_mode="min")
    return c
