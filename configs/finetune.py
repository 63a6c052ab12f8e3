"""Fine-tune an encoder on a labelled task: dropout and a dense head on the pooled output.

    firth train --config finetune.py:task=sst2,init=DIR --workdir runs/sst2 \\
        --config.data.dir=glue/ [--config.seeds=0,1,2]

Arguments: `task` is cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli (TSVs as GLUE distributes
them, under data.dir), `tfds:glue/sst2`, or `custom` for your own CSV, TSV or JSONL files with
named columns:

    firth train --config finetune.py:task=custom,init=DIR --workdir runs/mine \\
        --config.data.train=train.csv --config.data.dev=dev.csv \\
        --config.data.text=sentence --config.data.label=label

`init` is a published directory, a Firth directory, a workdir, or hf:org/name. `frozen=true` trains
the head alone. The recipe is the paper's (Devlin et al. 2019, appendix A.3): batch 32, 3 epochs, a
rate among 5e-5, 4e-5, 3e-5, 2e-5, warm-up over a tenth of the steps. Expected for BERT-base on
dev: SST-2 92.7, MRPC 86.7; what smaller encoders reach is recorded under experiments/.
"""

import ml_collections

from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, task="sst2", init="", length=128, frozen=False)
    c = ml_collections.ConfigDict()

    c.seed = 0
    c.seeds = ""  # "0,1,2": one run each under <workdir>/seed-N, and a summary
    c.epochs = 3.0
    c.steps = 0  # 0: as many as the epochs make
    c.batch_size = 32
    c.accumulate = 1
    c.init_from = arg.init

    c.model = dict(
        from_init=True,  # family and dimensions are those of the weights
        dropout=0.1,
        attention_dropout=0.1,
        classifier_dropout=0.1,
        scan=False,
        remat="none",
        dtype="float32",
    )
    c.data = dict(
        task=arg.task,
        dir="",
        train="",
        dev="",
        test="",
        text="",  # a column, or two with a comma between
        label="",
        kind="classification",  # or "regression"
        tokenizer="",  # "": the one that comes with the weights
        length=arg.length,
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,
    )
    c.objective = dict(
        name="finetune",
        lm_weight=0.0,  # of the language-modelling loss beside it, for causal models; GPT: 0.5
        both_orders=False,  # read a pair both ways, as GPT does where the order means nothing
    )

    c.optimizer = dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=True,  # the original left it out; it steadies small data (Mosbach 2021)
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
        multipliers=(),
        layer_decay=1.0,  # rate of each layer as a part of that above it; ELECTRA: 0.8 small, base
        legacy_layer_decay=False,  # one factor more, as in the released ELECTRA code
        freeze=("^encoder/",) if arg.frozen else (),
    )
    c.schedule = dict(name="xlnet_poly", lr=5e-5, warmup=0.1)
    c.nonfinite = "stop"  # "skip": leave the step out; "rollback": and what led to it
    c.spike = dict(policy="rollback", deviations=0.0, window=100)  # 0: none is looked for
    c.rollback = dict(batches=100, limit=3)

    # zero1: optimiser state is divided over `data` too; slices: of a pod, joined by its network.
    c.mesh = dict(data=-1, fsdp=1, tensor=1, zero1=False, slices=1)
    c.reduce_dtype = "float32"  # of gradients summed over `data`; "bfloat16" sends half the bytes
    c.reduce_async = False  # True: TPUs sum gradients while the backward pass goes on
    c.rng = "threefry2x32"

    c.log_every = 50
    c.eval = dict(every=0, epochs=1.0, batch_size=64)  # every: steps; 0: by epochs
    c.checkpoint = dict(minutes=10.0, every=0, keep=1, best="task", best_mode="max")
    c.progress = True
    c.resume = ""
    return c
