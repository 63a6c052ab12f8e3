"""GPT-2: a causal language model on web text (Radford et al. 2019).

    firth prepare --input 'corpus/*.txt' --train-tokenizer bpe --vocab-size 50257 --output store/
    firth train --config gpt2.py:base --workdir runs/gpt2 --config.data.store=store/
    firth generate --model runs/gpt2 --prompt "The vase" --top-k=40

Arguments: `gpt2.py:SIZE[,length=N]`. SIZE is tiny, mini, small, or a published one: base (124M),
medium, large, xl (1.5B); `length` is 0 for the size's own, 1,024 in the paper.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach.

The paper says 512 rows of 1,024 tokens of WebText, which was never released, and a rate tuned by
hand for each size; updates, decay and schedule are unpublished. Those here are what GPT-3's paper
gives for models of these sizes (Brown et al. 2020, table 2.1 and appendix B): Adam with 0.9 and
0.95, decay 0.1, a cosine, gradients clipped at 1. `steps` is a choice (157 billion tokens), and the
cosine ends at zero. Expected of the published weights, zero-shot perplexity (table 3): WikiText-2
29.41 for base, 18.34 for xl. What this recipe has reached so far is recorded under experiments/.

Departures from the paper and its code:
- Optimiser of GPT-3: GPT-2's is unpublished but for a rate tuned by hand, as said above.
- Cosine to zero: GPT-3's rate falls to a tenth over 260 billion tokens. Here it falls to zero over
  the run, of any length, after GPT's 2,000 updates of warm-up.
- Dropout: no paper names it. Here it is GPT's .1, as in transformers' configuration of GPT-2.
- Streams: how rows are drawn is unpublished. Here 512 streams are read side by side, as for GPT.
- Positions at .02: the code draws them with a deviation of .01. Here they have that of all else, as
  in transformers.
"""

from firth.configs import common, laptop
from firth.models.gpt2 import size
from firth.recipe import parse_arg

RATES = {"medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}  # GPT-3's paper, table 2.1


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0)
    length = arg.length or laptop.length("gpt2", arg.size, 1024)
    c = common.pretraining(steps=300_000, batch_size=512)  # rows are streams

    c.model = common.with_kernels(
        "gpt2",
        **size(arg.size),
        max_length=max(length, 1024),
        activation="gelu_tanh",
        dropout=0.1,
        attention_dropout=0.1,
        embedding_dropout=0.1,
    )

    c.data = common.split_data(
        view="streams",
        shuffle=True,
        ends="document",  # where the end-of-text token goes; or "sentence", "none"
        length=length,
    )

    c.objective = dict(name="clm")

    c.optimizer = common.optimizer(  # GPT-3's paper, appendix B
        name="adamw",
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.1,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=RATES.get(arg.size, 6e-4), warmup=2000 / c.steps)

    c.eval.batch_size = 64
    return laptop.settle(c, "gpt2", arg.size)
