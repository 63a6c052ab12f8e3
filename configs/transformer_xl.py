"""Transformer-XL: a causal language model with memory (Dai et al. 2019).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config transformer_xl.py:ptb --workdir runs/ptb --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `transformer_xl.py:SIZE[,length=N]`. SIZE is tiny, mini, ptb, enwik8, wt103 or
wt103_large; `length` is that of a segment in training, 0 for the size's own. Evaluation may look
further back than training did (`eval.memory`).

Expected at convergence, test: PTB 54.5 perplexity, WikiText-103 24.0 (wt103, on 4 GPUs) and 18.3
(wt103_large), enwik8 1.06 bits a character (enwik8; table 2). The paper's softmax over WikiText-103
is adaptive; here it is whole.
"""

import ml_collections

from firth.models.transformer_xl import size
from firth.recipe import parse_arg

# size -> (length, memory, batch size, steps, lr, dropout, attention dropout, clamp, evaluation's
# memory)
SETTINGS = {
    "ptb": (70, 70, 60, 40_000, 2.5e-4, 0.3, 0.1, 0, 280),
    "enwik8": (512, 512, 22, 400_000, 2.5e-4, 0.1, 0.0, 820, 2100),
    "wt103": (150, 150, 60, 200_000, 2.5e-4, 0.1, 0.0, 400, 640),
    "wt103_large": (384, 384, 128, 4_000_000, 2.5e-4, 0.2, 0.2, 1000, 1600),
}


def get_config(arg=None):
    arg = parse_arg(arg, size="ptb", length=0)
    found = SETTINGS.get(arg.size, (64, 64, 32, 20_000, 1e-3, 0.1, 0.0, 0, 128))
    length, memory, batch_size, steps, rate, dropout, attention_dropout, clamp, longer = found
    length = arg.length or length
    c = ml_collections.ConfigDict()

    c.seed = 0
    c.steps = steps
    c.until = 0  # end after so many of these steps; 0: after all
    c.batch_size = batch_size  # streams that are read side by side, over all devices
    c.accumulate = 1  # micro-batches an update; exact for weighted losses

    c.model = dict(
        family="transformer_xl",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        activation="relu",
        dropout=dropout,
        attention_dropout=attention_dropout,
        clamp_len=clamp,
        untie_r=False,
        same_length=False,
        scan=False,  # True compiles one layer instead of N
        remat="none",  # "all_dots", "dots", "full" trade more and more time for memory
        dtype="float32",  # "bfloat16" on accelerators; parameters stay float32
    )

    c.data = dict(
        store="",
        heldout_store="",  # evaluate on this store instead of held-out documents
        view="streams",
        shuffle=False,
        ends="sentence",  # where the end-of-text token goes; or "document", "none"
        length=length,
        heldout=0.0,  # fraction of the documents kept for evaluation
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,
    )

    c.objective = dict(name="clm", memory=memory)

    c.optimizer = dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.0,
        decay_exclude=("norm/", "bias$"),
        clip_norm=0.25,
        multipliers=(),
        freeze=(),
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=rate, warmup=0.0)
    c.nonfinite = "stop"  # "skip": leave the step out; "rollback": and what led to it
    c.spike = dict(policy="rollback", deviations=0.0, window=100)  # 0: none is looked for
    c.rollback = dict(batches=100, limit=3)

    # zero1: optimiser state is divided over `data` too; slices: of a pod, joined by its network.
    c.mesh = dict(data=-1, fsdp=1, tensor=1, zero1=False, slices=1)
    c.reduce_dtype = "float32"  # of gradients summed over `data`; "bfloat16" sends half the bytes
    c.reduce_async = False  # True: TPUs sum gradients while the backward pass goes on
    c.rng = "threefry2x32"  # the draws of "rbg" differ between backends and meshes

    c.log_every = 100
    c.eval = dict(every=1000, batch_size=8, batches=1000, memory=longer)
    c.checkpoint = dict(minutes=10.0, every=0, keep=2, best="heldout/lm_loss", best_mode="min")
    c.progress = True

    c.init_from = ""  # a published directory, a Firth directory, a workdir or hf:org/name
    c.resume = ""  # another run's workdir to go on from, its optimiser included
    return c
