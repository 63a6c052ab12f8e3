"""RoBERTa: BERT's body, dynamic masks, full sentences, no pair objective (Liu et al. 2019).

    firth prepare --input 'corpus/*.txt' --train-tokenizer bpe --vocab-size 50000 --output store/
    firth train --config roberta.py:base --workdir runs/roberta --config.data.store=store/

Arguments: `roberta.py:SIZE[,length=N][,mode=sentences|documents|blocks]`. SIZE is tiny, mini,
small, base or large; `length` is 0 for the size's own, 512 in the paper. `mode` is the paper's
FULL-SENTENCES (the default), DOC-SENTENCES, or fixed blocks.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach.

The paper trains both sizes for 500k steps of 8,192 rows at length 512 (table 9) on 1,024 V100s for
a day; `accumulate` makes such batches on few devices. A batch of 256 wants lr 1e-4, of 2,048 5e-4
to 7e-4. Expected after fine-tuning base: MNLI-m 87.6, SST-2 94.8, RTE 78.7 (dev).

Departures from the paper and its code:
- Separators: in fairseq's data every line ends with one. Here there is one more between documents,
  as in the paper, and none within.
- DOC-SENTENCES at one batch size: the paper enlarges the batch where rows are short. Here a step
  has one shape; raise `batch_size` to see as many tokens.
"""

from firth.configs import common, laptop
from firth.models.roberta import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0, mode="sentences")
    length = arg.length or laptop.length("roberta", arg.size, 512)
    large = arg.size == "large"
    c = common.pretraining(steps=500_000, batch_size=8192)  # table 9; small: laptop.py

    c.model = common.with_kernels(
        "roberta",
        **size(arg.size),
        max_length=512,
        pad_id=-1,  # -1: that of the tokenizer; positions begin after it
        activation="gelu",
        dropout=0.1,
        attention_dropout=0.1,
    )

    c.data = common.data(view="packed", mode=arg.mode, length=length)  # section 4.2

    c.objective = dict(
        name="mlm",
        pairs="none",
        masking="token",
        static=False,  # section 4.1: masks are dynamic
        rate=0.15,
        mask_rate=0.8,
        random_rate=0.1,
        max_predictions=int(0.15 * length) + 1,  # never binds
        counting="floor",  # floor(rate x tokens + U[0, 1)): exact on average
        mask_specials=True,  # fairseq masks <s> and </s> too
        random_specials=False,  # but puts none in by chance
    )

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.98,  # section 3.1: steadies large batches
        eps=1e-6,
        bias_correction=True,
        weight_decay=0.01,
        decay_exclude=(),  # fairseq decays everything
        clip_norm=0.0,
    )
    c.schedule = dict(
        name="fairseq_polynomial",
        lr=4e-4 if large else 6e-4,
        warmup=(30_000 if large else 24_000) / 500_000,
    )
    return laptop.settle(c, "roberta", arg.size)
