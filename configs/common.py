"""What all recipes have in common: how a run goes, as opposed to what a paper says.

A recipe builds its sections with these functions. Fields that it gives replace those here.
"""

import ml_collections

PENN_TREEBANK = 929_589  # tokens of its training text, ends of sentences included
TINY_SHAKESPEARE = 1_003_854  # characters of its first nine tenths


def run(**fields) -> ml_collections.ConfigDict:
    """The config of any run, with the recipe's own fields."""
    every = dict(
        seed=0,  # of initial values, masks, dropout and the order of the data
        accumulate=1,  # micro-batches an update; exact for weighted losses
        init_from="",  # a published directory, a Firth directory, a workdir, hf:org/name or minilm
        resume="",  # another run's workdir to go on from, its optimiser included
        rng="threefry2x32",  # the draws of "rbg" differ between backends and meshes
        mesh=dict(
            data=-1,  # devices that divide the rows; -1: all that the other axes leave
            fsdp=1,  # devices that divide the rows and the parameters
            tensor=1,  # devices that divide the parameters alone
            zero1=False,  # True: optimiser state is divided over `data` too
            slices=1,  # slices of a pod, joined by its network
        ),
        product_dtype="float32",  # of float32 operands; "bfloat16" is faster on some CPUs
        reduce_dtype="float32",  # of gradients summed over `data`; "bfloat16" sends half the bytes
        reduce_async=False,  # True: TPUs sum gradients while the backward pass goes on
        nonfinite="stop",  # "skip": leave the step out; "rollback": and what led to it
        spike=dict(
            policy="rollback",  # the same choice, for a loss far above those before it
            deviations=0.0,  # how many standard deviations are far; 0: no spike is looked for
            window=100,  # how many losses before it count
        ),
        rollback=dict(
            batches=100,  # how many steps it goes back
            limit=3,  # rollbacks of a run; after so many it stops
        ),
        checkpoint=dict(
            minutes=10.0,  # save when so much time has passed since the last save
            every=100_000,  # and after every so many steps, for good; 0: never
            keep=2,  # how many of the newest to keep of those saved by time
            best="",  # "heldout/mlm_loss" also keeps the checkpoint where that was best
            best_mode="max",  # "min": the lowest is the best
        ),
        log_every=100,  # steps
        progress=True,  # show a progress bar, and what the run will take
        curves=True,  # draw curves.png at the end
    )
    return ml_collections.ConfigDict(every | fields)


def pretraining(*, steps: int, batch_size: int, **fields) -> ml_collections.ConfigDict:
    """The config of a run on unlabelled text.

    `steps` is the number of updates in the schedule, `batch_size` the number of rows an update
    over all devices. A view that reads streams has one in each row.
    """
    every = dict(
        until=0,  # end after so many of the steps; 0: after all
        eval=dict(
            every=5000,  # steps; 0: at the end alone
            batch_size=256,
            batches=100,  # at most
        ),
    )
    return run(steps=steps, batch_size=batch_size, **every | fields)


def execution(**fields) -> dict:
    """The model section of any run: how the model is computed."""
    every = dict(
        scan=False,  # True compiles one layer instead of N
        remat="none",  # "all_dots", "dots", "full" trade more and more time for memory
        dtype="float32",  # "bfloat16" on accelerators; parameters stay float32
    )
    return every | fields


def model(family: str, **fields) -> dict:
    """The model section of a family."""
    every = dict(
        vocab_size=0,  # 0: that of the tokenizer
        attention="plain",  # "cudnn": NVIDIA's kernels, in 16 bits; "auto": where they are right
    )
    return execution(family=family, **every | fields)


def with_kernels(family: str, **fields) -> dict:
    """The model section of a family whose attention has TPU kernels."""
    every = dict(
        fused_attention=False,  # True: TPU kernels, for rows that they take (docs/devices.md)
    )
    return model(family, **every | fields)


def loading(**fields) -> dict:
    """The data section of any run: how batches are loaded."""
    every = dict(
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,  # batches that are made ahead
    )
    return every | fields


def data(**fields) -> dict:
    """The data section of pretraining."""
    every = dict(
        store="",  # what `firth prepare` wrote
        heldout=0.01,  # fraction of the documents kept for evaluation
    )
    return loading(**every | fields)


def split_data(**fields) -> dict:
    """The data section of pretraining on a corpus that may have a held-out split of its own."""
    every = dict(
        heldout_store="",  # evaluate on this store instead of held-out documents
    )
    return data(**every | fields)


def lora() -> dict:
    """The lora section: what LoRA trains of a body, if it does."""
    return dict(
        rank=0,  # of the factors; 0: no LoRA, all of the body is trained
        alpha=16.0,  # alpha / rank multiplies their product
        targets="attention/(query|value|qkv)(/kernel)?$",  # expression on the paths of kernels
    )


def optimizer(**fields) -> dict:
    """The optimizer section."""
    every = dict(
        multipliers=(),  # pairs: expression on parameter paths, factor of the learning rate
        freeze=(),  # expressions; these parameters get no update
    )
    return every | fields
