"""BERT: masked language modelling and next-sentence prediction (Devlin et al. 2019).

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
    firth train --config bert.py:base --workdir runs/base --config.data.store=store/

Arguments: `bert.py:SIZE[,length=N][,view=pairs|packed]`. SIZE is tiny, mini, small, medium,
base, large or one of the 24 miniatures of Turc et al. 2019 by layers and width, as in 6x512.
`length` is 0 for the size's own, 128 in the paper.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach.

The paper trains base and large for 900k steps of 256 rows at length 128, then 100k at length 512,
all under one schedule of a million: the second run goes on with the rate, the moments and the step
count of the first.
    firth train --config bert.py:base --workdir runs/128 --config.data.store=store/ \\
        --config.until=900000
    firth train --config bert.py:base,length=512 --workdir runs/512 --config.data.store=store/ \\
        --config.resume=runs/128
on 4 Cloud TPUs (16 chips) for 4 days (base) and 16 Cloud TPUs for 4 days (large). Expected after
fine-tuning base: MNLI-m 84.4, SST-2 92.7, MRPC 86.7 (dev). What this recipe has reached so far is
recorded under experiments/.

view=packed trains on full sentences without the pair objective, as RoBERTa's ablation does.

Departures from the paper and its code:
- Masks drawn anew: the code masks every row once for each of ten copies of the data. Here a mask is
  drawn whenever a row comes, which does as well (RoBERTa's table 1) and needs no copies;
  `objective.static=True` is the code's.
- Random second texts: the code gives up after ten draws of the same document and still calls the
  text random. Here it is another document's, and a corpus of one is refused.
- Miniatures: they were released without a recipe. By layers and width they have base's; by name,
  tiny, mini and small have settings for a laptop, as said above.
"""

from firth.configs import common, laptop
from firth.models.bert import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0, view="pairs")
    length = arg.length or laptop.length("bert", arg.size, 128)
    pairs = arg.view == "pairs"
    c = common.pretraining(steps=1_000_000, batch_size=256)  # appendix A.2; small sizes: laptop.py

    c.model = common.with_kernels(
        "bert",
        **size(arg.size),
        max_length=512,
        type_vocab_size=2,
        activation="gelu_tanh",
        dropout=0.1,
        attention_dropout=0.1,
        pooler=pairs,  # only the pair objective trains it
    )

    c.data = common.data(view=arg.view, length=length)
    if pairs:
        c.data.update(short_seq_prob=0.1, dupe_factor=10)
        c.data.order = "nsp"  # or "sop"
    else:
        c.data.update(mode="sentences")

    c.objective = dict(
        name="mlm",
        pairs="nsp" if pairs else "none",
        masking="token",  # or "word"
        static=False,  # True: the same mask whenever a row of the same copy comes again
        rate=0.15,  # section 3.1, task 1
        mask_rate=0.8,
        random_rate=0.1,
        max_predictions=20 if length <= 128 else round(0.15 * length),  # the code's README
    )

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,  # the code has none
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    c.schedule = dict(name="bert_linear", lr=1e-4, warmup=0.01)
    return laptop.settle(c, "bert", arg.size)
