"""ALBERT: shared layers, small embeddings, n-gram masks and sentence order (Lan et al. 2020).

    firth prepare --input 'corpus/*.txt' --train-tokenizer unigram --vocab-size 30000 \\
        --output store/
    firth train --config albert.py:base --workdir runs/albert --config.data.store=store/

Arguments: `albert.py:SIZE[,length=N][,version=1|2]`. SIZE is tiny, mini, small, base, large, xlarge
or xxlarge; `length` is 0 for the size's own, 512 in the paper. Version 2 (the default) trains
without dropout, as all of xxlarge does.

tiny, mini and small have settings of their own, and AdamW (laptop.py): twenty minutes and two hours
on two cores, an hour on one GPU. experiments/small_recipes says what they reach.

The paper trains for 125k steps of 4,096 rows with LAMB on 64 to 512 TPU v3 chips. Expected after
fine-tuning base v2: MNLI 84.6, SST-2 92.9 (dev). The released data code predicts 20 tokens a row
at length 512; the recipe's 77 are what the paper's 15 % come to.

Departures from the paper and its code:
- Predictions of a row: the released data code predicts 20 tokens of 512. Here they are 77, which
  the paper's 15 % come to.
- Masks drawn anew: the code masks every row once for each of 40 copies. Here a mask is drawn
  whenever a row comes, as in BERT's recipe.
- Length of training: version 2 trained for 3M to 10M steps on more data, which are unpublished.
  Here all sizes have the 125k of the paper's tables.
- Single sentences: where a document leaves one sentence, the code pairs it with a random text and
  calls it swapped. Here as in the code, which the released models learned from.
"""

from firth.configs import common, laptop
from firth.errors import FirthError
from firth.models.albert import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0, version=2)
    length = arg.length or laptop.length("albert", arg.size, 512)
    if arg.version not in (1, 2):
        raise FirthError(f"albert.py: version={arg.version}; expected 1 or 2")
    dropout = 0.1 if arg.version == 1 and arg.size != "xxlarge" else 0.0  # section 4.8
    c = common.pretraining(steps=125_000, batch_size=4096)  # section 4.1; small sizes: laptop.py

    c.model = common.with_kernels(
        "albert",
        **size(arg.size),
        num_groups=1,  # section 3.1: all layers share their parameters
        inner_layers=1,
        max_length=512,
        type_vocab_size=2,
        activation="gelu_tanh",
        dropout=dropout,
        attention_dropout=dropout,
        pooler=True,
        # One layer is compiled; unrolled, two or four take fewer copies.
        scan=arg.size not in ("tiny", "mini"),
    )

    c.data = common.data(
        view="pairs",
        order="sop",  # section 3.1: the order of two segments
        length=length,
        short_seq_prob=0.1,
        dupe_factor=40,
    )

    c.objective = dict(
        name="mlm",
        pairs="sop",
        masking="ngram",  # of 1 to 3 words, in proportion to 1/n; section 4.1
        static=False,
        rate=0.15,
        mask_rate=0.8,
        random_rate=0.1,
        max_predictions=20 if length <= 128 else round(0.15 * length),
    )

    c.optimizer = common.optimizer(
        name="lamb",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    c.schedule = dict(name="albert_poly", lr=1.76e-3, warmup=3125 / 125_000)
    return laptop.settle(c, "albert", arg.size)
