"""GPT: a causal language model on long runs of text (Radford et al. 2018).

    firth prepare --input 'books/*.txt' --train-tokenizer bpe --vocab-size 40000 --output store/
    firth train --config gpt.py:base --workdir runs/gpt --config.data.store=store/
    firth generate --model runs/gpt --prompt "The vase"

Arguments: `gpt.py:SIZE[,length=N]`. SIZE is tiny, mini, small or base (the paper's, 117M); `length`
is 0 for the size's own, 512 in the paper.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach.

The paper trains on BooksCorpus for 100 epochs of 64 rows of 512 tokens, with Adam at 2.5e-4 after
2,000 updates of warm-up, and ends at a perplexity of 18.4. It gives epochs, not updates: `steps` is
an estimate for about a billion tokens, to be set for your corpus. The decay acts on all but biases
and gains. As in the released code, dropout acts on the matrix of tokens and positions, and the
softmax is over all of it.

The paper's vocabulary (40,478 pieces that mark where words end, lower-cased text) comes with the
published model alone; one trained here is byte-level. What this recipe has reached so far is
recorded under experiments/.

Departures from the paper and its code:
- Adam's constants: the paper gives the rate alone. Here they and the clip are the code's for
  fine-tuning.
- Length of training: the paper's is 100 epochs. Here it is 3M updates, to be set for your corpus.
- Streams: the paper draws rows at random. Here 64 streams are read side by side, each token once an
  epoch.
- Vocabulary: one trained for this recipe is byte-level and keeps case, as said above.
"""

from firth.configs import common, laptop
from firth.models.gpt import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0)
    length = arg.length or laptop.length("gpt", arg.size, 512)
    c = common.pretraining(steps=3_000_000, batch_size=64)  # rows are streams

    c.model = common.with_kernels(
        "gpt",
        **size(arg.size),
        max_length=max(length, 512),
        activation="gelu_tanh",
        dropout=0.1,
        attention_dropout=0.1,
        embedding_dropout=0.1,
        matrix_dropout=True,  # one mask for the table, not one for each place
        softmax_over_all=True,  # positions are scored too, and learn not to be words
    )

    c.data = common.split_data(
        view="streams",
        shuffle=True,
        ends="document",  # where the end-of-text token goes; or "sentence", "none"
        length=length,
    )

    c.objective = dict(name="clm")

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.01,  # of all but biases and gains; section 4.1
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=2.5e-4, warmup=2000 / c.steps)

    c.eval.batch_size = 64
    return laptop.settle(c, "gpt", arg.size)
