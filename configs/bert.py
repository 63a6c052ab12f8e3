"""BERT: masked language modelling and next-sentence prediction (Devlin et al. 2019).

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
    firth train --config bert.py:base --workdir runs/base --config.data.store=store/

Arguments: `bert.py:SIZE[,length=128][,view=pairs|packed]`. SIZE is tiny, mini, small, medium,
base, large or one of the 24 miniatures of Turc et al. 2019 by layers and width, as in 6x512.

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
- Miniatures: they were released without a recipe, and have base's.
"""

import ml_collections

from firth.models.bert import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=128, view="pairs")
    c = ml_collections.ConfigDict()

    c.seed = 0
    c.steps = 1_000_000
    c.until = 0  # end after so many of these steps; 0: after all
    c.batch_size = 256  # rows an update, over all devices
    c.accumulate = 1  # micro-batches an update; exact for weighted losses

    c.model = dict(
        family="bert",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        max_length=512,
        type_vocab_size=2,
        activation="gelu_tanh",
        dropout=0.1,
        attention_dropout=0.1,
        pooler=arg.view == "pairs",  # only the pair objective trains it
        scan=False,  # True compiles one layer instead of N
        remat="none",  # "all_dots", "dots", "full" trade more and more time for memory
        fused_attention=False,  # True: TPU kernels, for rows of 512 or 1,024 tokens
        dtype="float32",  # "bfloat16" on accelerators; parameters stay float32
    )

    c.data = dict(
        store="",
        view=arg.view,
        length=arg.length,
        heldout=0.01,  # fraction of the documents kept for evaluation
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,
    )
    if arg.view == "pairs":
        c.data.update(order="nsp", short_seq_prob=0.1, dupe_factor=10)  # or "sop"
    else:
        c.data.update(mode="sentences")

    c.objective = dict(
        name="mlm",
        pairs="nsp" if arg.view == "pairs" else "none",
        masking="token",  # or "word"
        static=False,  # True: the same mask whenever a row of the same copy comes again
        rate=0.15,
        max_predictions=20 if arg.length <= 128 else round(0.15 * arg.length),
        mask_rate=0.8,
        random_rate=0.1,
    )

    c.optimizer = dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
        multipliers=(),
        freeze=(),
    )
    c.schedule = dict(name="bert_linear", lr=1e-4, warmup=0.01)
    c.nonfinite = "stop"  # "skip": leave the step out; "rollback": and what led to it
    c.spike = dict(policy="rollback", deviations=0.0, window=100)  # 0: none is looked for
    c.rollback = dict(batches=100, limit=3)

    # zero1: optimiser state is divided over `data` too; slices: of a pod, joined by its network.
    c.mesh = dict(data=-1, fsdp=1, tensor=1, zero1=False, slices=1)
    c.reduce_dtype = "float32"  # of gradients summed over `data`; "bfloat16" sends half the bytes
    c.reduce_async = False  # True: TPUs sum gradients while the backward pass goes on
    c.rng = "threefry2x32"  # the draws of "rbg" differ between backends and meshes

    c.log_every = 100
    c.eval = dict(every=5000, batch_size=256, batches=100)
    # best="heldout/mlm_loss" with best_mode="min" also keeps the checkpoint where that was lowest.
    c.checkpoint = dict(minutes=10.0, every=100_000, keep=2, best="", best_mode="max")
    c.progress = True

    c.init_from = ""  # a published directory, a Firth directory, a workdir or hf:org/name
    c.resume = ""  # another run's workdir to go on from, its optimiser included
    return c
