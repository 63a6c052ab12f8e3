"""Character LSTM: a recurrent language model whose words are characters (karpathy/char-rnn).

    firth prepare --input train.txt --tokenizer tok/ --train-tokenizer char --sentences newline \\
        --document file --output train/
    firth prepare --input valid.txt --tokenizer tok/ --sentences newline --document file \\
        --output valid/
    firth train --config char_lstm.py:small --workdir runs/char --config.data.store=train/ \\
        --config.data.heldout_store=valid/
    firth generate --model runs/char --prompt "ROMEO:" --tokens 500 --temperature 0.8

Arguments: `char_lstm.py:SIZE[,length=N][,rows=N][,characters=N]`. SIZE is tiny, small or medium;
`length` is that of a window in training; `rows` are the parts of the text that are read side by
side; `characters` are those of the text that is trained on, from which epochs are counted:
1,003,854 in the first nine tenths of Tiny Shakespeare.

The vocabulary has every character of the text, the line end and both cases. The measure is
`bits_per_character`, base-2 logarithms a character, line ends included.

tiny takes about two minutes of one core, small about twenty; medium, as wide as the networks of the
char-rnn page, wants a GPU. Measured on Tiny Shakespeare: see experiments/characters.

Departures from the paper and its code:
- Optimiser: char-rnn uses RMSProp at .002, multiplied by .97 in each epoch after the tenth. Here it
  is Adam, whose rate falls to zero by a cosine, so that a few epochs suffice.
- Clipping: char-rnn clips each number of the gradient at 5; here its norm is at most 1.
"""

from firth.configs import common
from firth.errors import FirthError
from firth.recipe import parse_arg

# size -> (layers, hidden size, epochs, dropout)
SIZES = {
    "tiny": (1, 128, 5, 0.0),
    "small": (1, 384, 9, 0.2),
    "medium": (2, 512, 30, 0.5),
}


def get_config(arg=None):
    arg = parse_arg(arg, size="small", length=64, rows=32, characters=common.TINY_SHAKESPEARE)
    if arg.size not in SIZES:
        raise FirthError(f"there is no size {arg.size!r}; choose one of {', '.join(SIZES)}")
    layers, width, epochs, dropout = SIZES[arg.size]
    epoch = max((arg.characters // arg.rows - 1) // arg.length, 1)  # steps
    c = common.pretraining(steps=epochs * epoch, batch_size=arg.rows)  # rows are streams

    c.model = common.execution(
        family="lstm",
        vocab_size=0,  # 0: that of the tokenizer
        num_layers=layers,
        hidden_size=width,
        embedding_size=64,  # 0: as the layers
        tied_softmax=False,  # True: the softmax uses the embeddings
        capped_input_gate=False,  # True: the input gate is min(1 - f, i) (Melis et al. 2017)
        sums_layers=False,  # True: the output is the sum of all layers'
        dropout=dropout,  # between layers
        embedding_dropout=0.0,
        output_dropout=dropout,
        state_dropout=0.0,  # of the state that a step reads, one mask for a row
        init_range=0.08,  # of all parameters, to both sides of zero
        forget_bias=1.0,  # added to the forget gate's initial bias
    )

    c.data = common.split_data(
        heldout=0.0,  # a text of one document: prepare its parts
        view="streams",
        shuffle=False,
        ends="none",  # line ends are characters of the store
        length=arg.length,
    )

    c.objective = dict(name="clm")

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.99,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.0,
        decay_exclude=(),
        clip_norm=1.0,
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=0.003, warmup=0.02)

    c.eval.update(every=epoch, batch_size=arg.rows, batches=1000)
    c.checkpoint.update(every=0, best="heldout/lm_loss", best_mode="min")
    return c
