"""ULMFiT: a language model, adapted to a text, becomes a classifier (Howard and Ruder 2018).

    firth prepare --input wiki.txt --tokenizer tok/ --train-tokenizer word --vocab-size 30000 \\
        --output wiki/
    firth train --config ulmfit.py:pretrain --workdir runs/wiki --config.data.store=wiki/

    firth prepare --input reviews.txt --tokenizer own/ --train-tokenizer word --vocab-size 30000 \\
        --output reviews/
    firth train --config ulmfit.py:lm,init=runs/wiki --workdir runs/lm \\
        --config.data.store=reviews/
    firth train --config ulmfit.py:classifier,init=runs/lm --workdir runs/classifier \\
        --config.data.train=train.csv

Arguments: `ulmfit.py:STAGE[,init=DIR][,size=SIZE][,length=N][,backward=True][,task=NAME]`. STAGE is
pretrain, lm or classifier. `size` is tiny, small or medium, the paper's; what follows pretrain has
the dimensions of its weights, and the settings of this size. `length` is that of a window, 70, or
the longest text of the classifier, 1,400. `backward=True` (pretrain and lm) makes the second model,
which reads texts from their end; `firth evaluate --model A,B` averages both classifiers. `task` is
as in finetune.py.

The language model goes on with words of the target's own (`transfer_vocabulary`): those that it
knows keep their rows, others begin as the mean row. The rate of each layer is that of the one above
it divided by 2.6, and rises to its peak in a tenth of the steps. The classifier reads the last, the
greatest and the mean state of a text. Its head is trained for an epoch, and then a layer more each
epoch (`unfreeze_epochs`); each of these stages has a triangle of its own and a new optimiser state.

tiny and small are for a laptop, which sees a text once or twice: one large rate for all layers of
the language model, hardly any dropout and no penalties (experiments/ulmfit has what that gains, and
what small reaches on IMDB). medium wants a GPU. Expected of it, both directions: IMDB 4.6 % error,
TREC-6 3.6, AG News 5.0.

Departures from the paper and its code:
- Tokens: the code marks capitals and repetitions (`t_up`, `tk_rep`) and begins texts with `xbos`.
  Here words are as the tokenizer makes them, and the end-of-text token stands on both sides.
- Windows: the code draws their lengths; here they are equal, from a random place on.
- Softmax: the code samples 15,000 negatives in pretraining; here it is whole, with a bias.
- Rates of pretraining: the code has lower ones for lower layers; here all are alike.
- Rates of the language model: the code has 1/6, 1/3 and 1 for three layers; here 1/2.6, as the
  paper. The embeddings, which are the softmax, have half the top layer's, as the code.
- Stages: the code trains the head, then the top layer too, then all, with other triangles. Here a
  layer more each epoch, with a triangle as the paper's.
- Norms: the batch normalisation of the classifier has the statistics of the whole batch of all
  devices, where the code has those of each device.
- Long texts: the code reads all of a text and pools its last 1,400 tokens; here the first 1,400.
  Gradients flow through the whole text, where the code cuts them every 70 tokens.
- Penalties: the code keeps those of the language model in the classifier; here there are none.
- Dropout of a text: one mask for a whole text, where the code draws one for each window.
"""

from firth.configs import common, finetune
from firth.errors import FirthError
from firth.models.recurrent.awd_lstm import size
from firth.recipe import parse_arg, suggest, with_fields

STAGES = ("pretrain", "lm", "classifier")
DECAY = 1 / 2.6  # of the rate, from a layer to that below
PAPER = {"embedding_dropout": 0.25, "dropout": 0.15, "output_dropout": 0.1}
PAPER |= {"word_dropout": 0.02, "weight_dropout": 0.2}  # half of it in pretraining
LAPTOP = dict.fromkeys(PAPER, 0.05) | {"word_dropout": 0.0}
WORDS = "encoder/word/embedding$"


def get_config(arg=None):
    arg = parse_arg(
        arg, stage="pretrain", init="", size="medium", length=0, backward=False, task=""
    )
    if arg.stage not in STAGES:
        raise FirthError(f"ulmfit.py has no stage {arg.stage!r}{suggest(arg.stage, STAGES)}")
    size(arg.size)  # or it is refused here
    if arg.stage != "classifier":
        return language_model(arg)
    return classifier(arg)


def language_model(arg):
    begins, laptop = arg.stage == "pretrain", arg.size != "medium"
    strength = 0.5 if begins else 1.0
    c = common.run(
        epochs=10.0 if begins else 25.0,  # passes over the store
        steps=0,  # 0: as many as the epochs make
        until=0,  # end after so many of the steps; 0: after all
        batch_size=32 if laptop else 64,  # rows are streams
        init_from=arg.init,
        transfer_vocabulary=not begins,
        eval=dict(
            every=1000,  # steps; 0: at the end alone
            batch_size=64,
            batches=100,  # at most
        ),
    )
    c.checkpoint.update(every=0)

    shape = dict(family="awd_lstm", vocab_size=0, init_range=0.1, **size(arg.size))
    c.model = common.execution(
        **shape | dict(backward=arg.backward) if begins else dict(from_init=True),
        **LAPTOP if laptop else {name: strength * rate for name, rate in PAPER.items()},
    )
    c.data = common.split_data(
        view="streams",
        shuffle=True,
        ends="document",
        length=arg.length or 70,
        random_start=True,
        backward=arg.backward,
    )
    c.objective = dict(
        name="clm",
        activation=0.0 if laptop else 2.0,
        temporal=0.0 if laptop else 1.0,
    )
    c.optimizer = adam(l2=1e-7, clip_norm=0.3)
    if laptop:
        c.schedule = triangle(1e-2)
    elif begins:
        c.schedule = triangle(3e-4)
    else:
        # The head stands above the top layer, whose rate is 4e-3.
        c.optimizer.update(
            layer_decay=DECAY,
            layer_decay_exclude=(WORDS,),
            multipliers=([f"{WORDS}|^lm/", 0.5 * DECAY],),
        )
        c.schedule = triangle(4e-3 / DECAY)
    return c


def classifier(arg):
    c = finetune.get_config(f"task={arg.task},init={arg.init},length={arg.length or 1400}")
    with c.unlocked():
        c.optimizer = adam(l2=1e-6, clip_norm=25.0)
        c.optimizer.update(layer_decay=DECAY)
        c.schedule = triangle(0.01)
        del c.model.attention_dropout  # there is no attention
    laptop = arg.size != "medium"
    return with_fields(
        c,
        {
            "settings": "awd_lstm",
            "epochs": 15.0,
            "unfreeze_epochs": 1.0,
            "model.embedding_dropout": 0.1 if laptop else 0.4,
            "model.dropout": 0.1 if laptop else 0.3,
            "model.output_dropout": 0.0,
            "model.word_dropout": 0.0 if laptop else 0.05,
            "model.weight_dropout": 0.1 if laptop else 0.5,
            "model.classifier_dropout": 0.4,
        },
    )


def adam(l2: float, clip_norm: float) -> dict:
    """The released code's Adam, whose decay is part of the loss."""
    return common.optimizer(
        name="adamw",
        b1=0.8,
        b2=0.99,
        eps=1e-8,
        bias_correction=True,
        weight_decay=0.0,
        decay_exclude=(),
        l2=l2,
        clip_norm=clip_norm,
    )


def triangle(rate: float) -> dict:
    """A slanted triangle: up in a tenth of the steps, then down to a 32nd."""
    return dict(name="stlr", lr=rate, cut_fraction=0.1, ratio=32.0)
