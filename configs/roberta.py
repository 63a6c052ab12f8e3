"""RoBERTa: BERT's body, dynamic masks, full sentences, no pair objective (Liu et al. 2019).

    firth prepare --input 'corpus/*.txt' --train-tokenizer bpe --vocab-size 50000 --output store/
    firth train --config roberta.py:base --workdir runs/roberta --config.data.store=store/

Arguments: `roberta.py:SIZE[,length=512][,mode=sentences|documents|blocks]`. SIZE is tiny, small,
base or large. `mode` is the paper's FULL-SENTENCES (the default), DOC-SENTENCES, or fixed blocks.

The paper trains both sizes for 500k steps of 8,192 rows at length 512 (table 9) on 1,024 V100s for
a day; `accumulate` makes such batches on few devices. A batch of 256 wants lr 1e-4, of 2,048 5e-4
to 7e-4. Expected after fine-tuning base: MNLI-m 87.6, SST-2 94.8, RTE 78.7 (dev).

Departures from the paper and its code:
- Separators: in fairseq's data every line ends with one. Here there is one more between documents,
  as in the paper, and none within.
- DOC-SENTENCES at one batch size: the paper enlarges the batch where rows are short. Here a step
  has one shape; raise `batch_size` to see as many tokens.
"""

import ml_collections

from firth.models.roberta import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=512, mode="sentences")
    large = arg.size == "large"
    c = ml_collections.ConfigDict()

    c.seed = 0
    c.steps = 500_000
    c.until = 0  # end after so many of these steps; 0: after all
    c.batch_size = 8192  # rows an update, over all devices
    c.accumulate = 1  # micro-batches an update; exact for weighted losses

    c.model = dict(
        family="roberta",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        max_length=512,
        pad_id=-1,  # -1: that of the tokenizer; positions begin after it
        activation="gelu",
        dropout=0.1,
        attention_dropout=0.1,
        scan=False,  # True compiles one layer instead of N
        remat="none",  # "all_dots", "dots", "full" trade more and more time for memory
        fused_attention=False,  # True: TPU kernels, for rows of 512 or 1,024 tokens
        dtype="float32",  # "bfloat16" on accelerators; parameters stay float32
    )

    c.data = dict(
        store="",
        view="packed",
        mode=arg.mode,
        length=arg.length,
        heldout=0.01,  # fraction of the documents kept for evaluation
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,
    )

    c.objective = dict(
        name="mlm",
        pairs="none",
        masking="token",
        static=False,
        rate=0.15,
        max_predictions=int(0.15 * arg.length) + 1,  # never binds
        counting="floor",  # floor(rate x tokens + U[0, 1)): exact on average
        mask_specials=True,  # fairseq masks <s> and </s> too
        random_specials=False,  # but puts none in by chance
        mask_rate=0.8,
        random_rate=0.1,
    )

    c.optimizer = dict(
        name="adamw",
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        bias_correction=True,
        weight_decay=0.01,
        decay_exclude=(),  # fairseq decays everything
        clip_norm=0.0,
        multipliers=(),
        freeze=(),
    )
    c.schedule = dict(
        name="fairseq_polynomial",
        lr=4e-4 if large else 6e-4,
        warmup=(30_000 if large else 24_000) / 500_000,
    )
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
