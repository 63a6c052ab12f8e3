"""Transformer-XL: a causal language model with memory (Dai et al. 2019).

    firth prepare --input ptb.train.txt --tokenizer tok/ --train-tokenizer word --sentences line \\
        --output ptb/train/
    firth prepare --input ptb.valid.txt --tokenizer tok/ --sentences line --output ptb/valid/
    firth train --config transformer_xl.py:ptb --workdir runs/ptb --config.data.store=ptb/train/ \\
        --config.data.heldout_store=ptb/valid/

Arguments: `transformer_xl.py:SIZE[,length=N]`. SIZE is tiny, mini, small, ptb, enwik8, wt103 or
wt103_large; `length` is that of a segment in training, 0 for the size's own.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach. They read documents in a
shuffled order and hold some out, where the other sizes have one text and a test set.

Evaluation is the released scripts': shorter segments (`eval.length`), a longer memory
(`eval.memory`), distances told apart up to a limit and every token with sight of equally many
(`eval.model`). Training has neither limit. `eval.batches` bounds what is measured during training;
measure the whole of a test set by `firth evaluate --config.eval.batches=1000000`.

Expected at convergence, test: PTB 54.5 perplexity, WikiText-103 24.0 (wt103, on 4 GPUs) and 18.3
(wt103_large), enwik8 1.06 bits a character (enwik8; table 2).

Departures from the paper and its code:
- Whole softmax: the paper's softmax and embeddings over WikiText-103 are adaptive, smaller for rare
  words in wt103_large. Here they are whole, as every family's, and cost more memory.
- Shared biases: the layers share their biases on the query, as in the paper's equations and the
  PyTorch code. The TPU script that reached 18.3 gives every layer its own (`model.untie_r`).
- Sight of equal length: a token sees the memory's length before it and itself, as in the TensorFlow
  code and XLNet's. The PyTorch code hides one token more.
- End of the cosine: it runs over the steps after the warm-up down to zero. The TensorFlow code
  stops at a hundredth, the PyTorch code counts the warm-up in; wt103_large alone has one.
- Norms begin at one: the PyTorch code draws their gains around it, the TensorFlow code does not.
- Settings of the test set: held-out text is measured by them in training too, where the code
  measures by those of training. So the best checkpoint is the best by what is reported.
- Penn Treebank: the paper adds variational dropout and averaged weights and leaves the rest unsaid.
  Here dropout is plain and the settings are Firth's; experiments/ records what they reach.
"""

from firth.configs import common, laptop
from firth.models.transformer_xl import size
from firth.recipe import parse_arg

# size -> (length and memory, batch size, steps, lr, warm-up steps, initial standard deviation,
# dropout, attention dropout)
TRAINING = {
    "ptb": (70, 60, 40_000, 2.5e-4, 0, 0.02, 0.3, 0.1),
    "enwik8": (512, 22, 400_000, 2.5e-4, 0, 0.02, 0.1, 0.0),
    "wt103": (150, 60, 200_000, 2.5e-4, 0, 0.02, 0.1, 0.0),
    "wt103_large": (384, 128, 4_000_000, 2.5e-4, 16_000, 0.005, 0.2, 0.2),
}
# size -> (length, 0: that of training; memory; options of the model)
EVALUATION = {
    "ptb": (0, 280, {}),
    "enwik8": (80, 2100, dict(clamp_len=820, same_length=True)),
    "wt103": (64, 640, dict(clamp_len=400, same_length=True)),
    "wt103_large": (128, 1600, dict(clamp_len=1000, same_length=True)),
}


def get_config(arg=None):
    arg = parse_arg(arg, size="ptb", length=0)
    found, own_text = TRAINING.get(arg.size, TRAINING["ptb"]), arg.size not in TRAINING
    memory, batch_size, steps, rate, warmup, stddev, dropout, attention_dropout = found
    memory = laptop.length("transformer_xl", arg.size, memory)
    measured_length, measured_memory, options = EVALUATION.get(arg.size, (0, 128, {}))
    c = common.pretraining(steps=steps, batch_size=batch_size)  # rows are streams

    c.model = common.with_kernels(
        "transformer_xl",
        **size(arg.size),
        activation="relu",
        dropout=dropout,
        attention_dropout=attention_dropout,
        init_stddev=stddev,
        clamp_len=0,  # the largest distance that is told apart; 0: all are
        untie_r=False,
        same_length=False,
    )

    c.data = common.split_data(
        heldout=0.01 if own_text else 0.0,  # the corpora of the paper come with test sets
        view="streams",
        shuffle=own_text,
        # where the end-of-text token goes; or "none"
        ends="document" if own_text else "sentence",
        length=arg.length or memory,
    )

    c.objective = dict(name="clm", memory=memory)

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.0,
        decay_exclude=("norm/", "bias$"),
        clip_norm=0.25,
    )
    c.schedule = dict(name="gpt_warmup_cosine", lr=rate, warmup=warmup / steps)

    c.eval.update(every=1000, batch_size=8, batches=1000)
    c.eval.update(length=measured_length, memory=measured_memory, model=options)
    c.checkpoint.update(every=0, best="heldout/lm_loss", best_mode="min")
    return laptop.settle(c, "transformer_xl", arg.size)
