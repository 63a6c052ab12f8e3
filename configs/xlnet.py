"""XLNet: permutation language modelling with memory (Yang et al. 2019).

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
    firth train --config xlnet.py:base --workdir runs/xlnet --config.data.store=store/

Arguments: `xlnet.py:SIZE[,length=N][,memory=N]`. SIZE is tiny, mini, small, base or large. `length`
is 0 for the size's own, 512 in the paper; `memory` is three quarters of it. With memory=0 rows are
packed, shuffled and read in one direction, as in the ablation without it.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach.

The paper trains large for 500k steps of 8,192 rows on 512 TPU v3 chips in 5.5 days, from 32.9
billion pieces. The released base model's settings are unpublished; those here are large's at the
batch size of the base ablation (256 rows of 512, Wikipedia and BooksCorpus; table 6). That one
reaches, after fine-tuning, MNLI-m 85.6, SST-2 93.4 (dev) and SQuAD 2 F1 81.0 with K = 6.

The README command of the released code, taken literally, trains a ReLU model without dropout,
warm-up or decay; these are the paper's values (section A.4).

Departures from the paper and its code:
- Settings of base: unpublished, as said above; the rate and warm-up are BERT-base's.
- Spans of pieces: the code means to count spans in words and counts pieces, as here
  (`objective.unit=word` counts words).
- Targets drawn anew: the code chooses a row's targets once for each of 20 passes. Here they are
  drawn whenever a row comes, as in BERT's recipe (`objective.static=True` is the code's).
- One mask for relative positions: the code drops other encodings of distances in every row. Here
  all rows share a mask, as in Transformer-XL's code: one a row multiplies the cost of projecting
  the encodings by the batch size.
- Targets on special tokens: the code drops what its spans cover of SEP and CLS, so that such a row
  predicts fewer. Here special tokens are never targets, and single tokens take those places.
"""

from firth.configs import common, laptop
from firth.models.xlnet import size
from firth.recipe import parse_arg

# size -> (batch size, steps, lr, warm-up steps); large: section A.4
SETTINGS = {"large": (8192, 500_000, 4e-4, 40_000)}


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0, memory=-1)
    batch_size, steps, rate, warmup = SETTINGS.get(arg.size, (256, 1_000_000, 1e-4, 10_000))
    length = arg.length or laptop.length("xlnet", arg.size, 512)
    memory = 3 * length // 4 if arg.memory == -1 else arg.memory  # 384 of 512
    reuse = length // 2 if memory else 0  # tokens of a row that go on where the row before ended
    c = common.pretraining(steps=steps, batch_size=batch_size)

    c.model = common.with_kernels(
        "xlnet",
        **size(arg.size),
        activation="gelu_tanh",
        dropout=0.1,
        attention_dropout=0.1,
        clamp_len=0,
        untie_r=True,
    )

    c.data = common.split_data(length=length)
    if memory:
        c.data.update(
            view="streams",
            shuffle=True,
            ends="document",
            reuse=reuse,
            bidirectional=True,  # half of the rows run backwards
        )
    else:
        c.data.update(view="packed", mode="sentences")

    c.objective = dict(
        name="plm",
        static=False,
        max_predictions=length // 6,  # 85 of 512: K = 6
        selection="span",  # or "token"
        unit="piece",  # "word" counts a span in words
        alpha=6,
        beta=1,
        perm_size=reuse,
        reuse=reuse,
        memory=memory,
        backwards=bool(memory),
    )

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    c.schedule = dict(name="xlnet_poly", lr=rate, warmup=warmup / steps)
    return laptop.settle(c, "xlnet", arg.size)
