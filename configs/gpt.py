"""GPT: a causal language model on long runs of text (Radford et al. 2018).

    firth prepare --input 'books/*.txt' --train-tokenizer bpe --vocab-size 40000 --output store/
    firth train --config gpt.py:base --workdir runs/gpt --config.data.store=store/
    firth generate --model runs/gpt --prompt "The vase"

Arguments: `gpt.py:SIZE[,length=512]`. SIZE is tiny, mini, small or base (the paper's, 117M).

The paper trains on BooksCorpus for 100 epochs of 64 rows of 512 tokens, with Adam at 2.5e-4 after
2,000 updates of warm-up, and ends at a perplexity of 18.4. It gives epochs, not updates: `steps` is
an estimate for about a billion tokens, to be set for your corpus. The decay acts on all but biases
and gains. As in the released code, dropout acts on the matrix of tokens and positions, and the
softmax is over all of it.

The paper's vocabulary (40,478 pieces that mark where words end, lower-cased text) comes with the
published model alone; one trained here is byte-level. What this recipe has reached so far is
recorded under experiments/.

Departures from the paper and its code:
- Adam's constants: the paper gives the rate alone. Here they and the clip are the code's for
  fine-tuning.
- Length of training: the paper's is 100 epochs. Here it is 3M updates, to be set for your corpus.
- Streams: the paper draws rows at random. Here 64 streams are read side by side, each token once an
  epoch.
- Vocabulary: one trained for this recipe is byte-level and keeps case, as said above.
"""

import ml_collections

from firth.models.gpt import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=512)
    c = ml_collections.ConfigDict()

    c.seed = 0
    c.steps = 3_000_000
    c.until = 0  # end after so many of these steps; 0: after all
    c.batch_size = 64  # streams that are read side by side, over all devices
    c.accumulate = 1  # micro-batches an update; exact for weighted losses

    c.model = dict(
        family="gpt",
        vocab_size=0,  # 0: that of the tokenizer
        **size(arg.size),
        max_length=max(arg.length, 512),
        activation="gelu_tanh",
        dropout=0.1,
        attention_dropout=0.1,
        embedding_dropout=0.1,
        matrix_dropout=True,  # one mask for the table, not one for each place
        softmax_over_all=True,  # positions are scored too, and learn not to be words
        scan=False,  # True compiles one layer instead of N
        remat="none",  # "all_dots", "dots", "full" trade more and more time for memory
        dtype="float32",  # "bfloat16" on accelerators; parameters stay float32
    )

    c.data = dict(
        store="",
        heldout_store="",  # evaluate on this store instead of held-out documents
        view="streams",
        shuffle=True,
        ends="document",  # where the end-of-text token goes; or "sentence", "none"
        length=arg.length,
        heldout=0.01,  # fraction of the documents kept for evaluation
        loader="auto",  # "tf.data" where TensorFlow is installed, else "thread"
        prefetch=2,
    )

    c.objective = dict(name="clm")

    c.optimizer = dict(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
        multipliers=(),
        freeze=(),
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=2.5e-4, warmup=2000 / c.steps)
    c.nonfinite = "stop"  # "skip": leave the step out; "rollback": and what led to it
    c.spike = dict(policy="rollback", deviations=0.0, window=100)  # 0: none is looked for
    c.rollback = dict(batches=100, limit=3)

    # zero1: optimiser state is divided over `data` too; slices: of a pod, joined by its network.
    c.mesh = dict(data=-1, fsdp=1, tensor=1, zero1=False, slices=1)
    c.reduce_dtype = "float32"  # of gradients summed over `data`; "bfloat16" sends half the bytes
    c.reduce_async = False  # True: TPUs sum gradients while the backward pass goes on
    c.rng = "threefry2x32"  # the draws of "rbg" differ between backends and meshes

    c.log_every = 100
    c.eval = dict(every=5000, batch_size=64, batches=100)
    c.checkpoint = dict(minutes=10.0, every=100_000, keep=2, best="", best_mode="max")
    c.progress = True

    c.init_from = ""  # a published directory, a Firth directory, a workdir or hf:org/name
    c.resume = ""  # another run's workdir to go on from, its optimiser included
    return c
