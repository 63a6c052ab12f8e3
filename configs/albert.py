"""ALBERT: shared layers, small embeddings, n-gram masks and sentence order (Lan et al. 2020).

    firth prepare --input 'corpus/*.txt' --train-tokenizer unigram --vocab-size 30000 \\
        --output store/
    firth train --config albert.py:base --workdir runs/albert --config.data.store=store/

Arguments: `albert.py:SIZE[,length=512][,version=1|2]`. SIZE is tiny, small, base, large, xlarge or
xxlarge. Version 2 (the default) trains without dropout, as all of xxlarge does.

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

import ml_collections

from firth.errors import FirthError
from firth.models.albert import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=512, version=2)
    if arg.version not in (1, 2):
        raise FirthError(f"albert.py: version={arg.version}; expected 1 or 2")
    dropout = 0.1 if arg.version == 1 and arg.size != "xxlarge" else 0.0
    c = ml_collections.ConfigDict()

    c.seed = 0
    c.steps = 125_000
    c.until = 0  # end after so many of these steps; 0: after all
    c.batch_size = 4096  # rows an update, over all devices
    c.accumulate = 1  # micro-batches an update; exact for weighted losses

    c.model = dict(
        family="albert",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        num_groups=1,
        inner_layers=1,
        max_length=512,
        type_vocab_size=2,
        activation="gelu_tanh",
        dropout=dropout,
        attention_dropout=dropout,
        pooler=True,
        scan=True,  # one layer is compiled; False unrolls the depth
        remat="none",  # "all_dots", "dots", "full" trade more and more time for memory
        fused_attention=False,  # True: TPU kernels, for rows of 512 or 1,024 tokens
        dtype="float32",  # "bfloat16" on accelerators; parameters stay float32
    )

    c.data = dict(
        store="",
        view="pairs",
        order="sop",
        length=arg.length,
        heldout=0.01,  # fraction of the documents kept for evaluation
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,
        short_seq_prob=0.1,
        dupe_factor=40,
    )

    c.objective = dict(
        name="mlm",
        pairs="sop",
        masking="ngram",  # of 1 to 3 words, in proportion to 1/n
        static=False,
        rate=0.15,
        max_predictions=20 if arg.length <= 128 else round(0.15 * arg.length),
        mask_rate=0.8,
        random_rate=0.1,
    )

    c.optimizer = dict(
        name="lamb",
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
    c.schedule = dict(name="albert_poly", lr=1.76e-3, warmup=3125 / 125_000)
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
    c.checkpoint = dict(minutes=10.0, every=100_000, keep=2, best="", best_mode="max")
    c.progress = True

    c.init_from = ""  # a published directory, a Firth directory, a workdir or hf:org/name
    c.resume = ""  # another run's workdir to go on from, its optimiser included
    return c
