"""DistilBERT: a student half as deep learns from its teacher (Sanh et al. 2019).

    firth train --config distilbert.py:base,teacher=hf:google-bert/bert-base-uncased \\
        --workdir runs/distil --config.data.store=store/

Arguments: `distilbert.py:SIZE,teacher=DIR[,layers=0-2-4-7-9-11][,length=N]`. SIZE is tiny, mini,
small (half of BERT's of that name) or base. `teacher` is any model with a masked LM head and the
corpus' vocabulary; `layers` are those of the teacher that the student starts from, `none` for
random values (as a student of another width must). The default for base is the paper's. `length`
is 0 for the size's own, 512 in the paper.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU, for a teacher of that size. experiments/small_recipes says what they reach.

The paper trains for 3 epochs of rows up to 512 in batches of about 4,000 on 8 V100s for 90 hours.
Expected after fine-tuning: MNLI 82.2, SST-2 91.3, RTE 59.9 (dev).

Departures from the paper and its code:
- Counts of a row: the code masks .15 of the tokens of a whole batch, chosen jointly. Here every row
  has its own .15, so that its mask does not depend on its neighbours or the number of devices.
- Rows: the code drops sequences of at most 11 tokens or half of them unknown and batches rows of
  like length. Here whole sentences of a document are packed into rows and none is dropped.
- Length of training: the paper's is 3 epochs. Here it is 100k updates, to be set for your corpus.
- The teacher's head: the code copies it on request (`--vocab_transform`). Here it always is: it
  scores the same vocabulary.
"""

from firth.configs import common, laptop
from firth.models.distilbert import size
from firth.recipe import parse_arg

# The teacher's layers that the student starts from; base: scripts/extract.py.
LAYERS = {"base": "0-2-4-7-9-11", "tiny": "0", "mini": "0-2", "small": "0-2"}


def get_config(arg=None):
    arg = parse_arg(arg, size="base", teacher="", layers="", length=0)
    length = arg.length or laptop.length("distilbert", arg.size, 512)
    layers = arg.layers or LAYERS.get(arg.size)
    c = common.pretraining(steps=100_000, batch_size=4000, accumulate=100)

    c.model = common.with_kernels(
        "distilbert",
        **size(arg.size),
        max_length=512,
        activation="gelu",
        dropout=0.1,
        attention_dropout=0.1,
    )

    c.data = common.data(view="packed", mode="documents", length=length)

    c.objective = dict(
        name="distill",
        teacher=arg.teacher,
        layers=tuple(int(n) for n in str(layers).split("-")) if layers != "none" else (),
        soft=5.0,  # weights of the three terms; section 2 and the README's command
        hard=2.0,
        cosine=1.0,
        temperature=2.0,
        masked_only=False,  # True: soft targets at the masked positions alone
        masking="frequency",  # rare tokens more often
        smoothing=0.7,
        static=False,
        rate=0.15,
        mask_rate=0.8,
        random_rate=0.1,
        max_predictions=round(0.15 * length),
    )

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        bias_correction=True,
        weight_decay=0.0,
        decay_exclude=("norm/", "bias$"),
        clip_norm=5.0,
    )
    c.schedule = dict(name="xlnet_poly", lr=5e-4, warmup=0.05)
    return laptop.settle(c, "distilbert", arg.size)
