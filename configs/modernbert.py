"""ModernBERT's body, to study the old objectives on a current encoder (Warner et al. 2024).

    firth prepare --input 'corpus/*.txt' --train-tokenizer bpe --vocab-size 50000 --output store/
    firth train --config modernbert.py:base --workdir runs/modern --config.data.store=store/

Arguments: `modernbert.py:SIZE[,length=N][,objective=mlm|rtd]`. SIZE is tiny, mini, small, base or
large; `length` is 0 for the size's own, 1,024 in the paper. Masked LM of 30 % of the tokens, as in
the paper, or replaced-token detection.

tiny, mini and small have settings of their own (laptop.py): ten minutes and two hours on two cores,
an hour on one GPU. experiments/small_recipes says what they reach.

The paper trains base on 1.7 T tokens at length 1,024 with batches of 4,608 rows and StableAdamW,
then extends to 8,192; this recipe keeps the body, the masking rate and the learning rate, with
AdamW and the trapezoidal schedule's warm-up and linear decay.

Departures from the paper and its code:
- AdamW: the paper has StableAdamW, which bounds each update. Here gradients are clipped at 1.
- Linear decay: the paper's rate is constant after its warm-up and falls in a phase of its own. Here
  it falls linearly, so that a run of one phase ends with a trained model.
- One phase: the paper's batch grows at first, and two phases at length 8,192 follow. Here it is the
  phase at 1,024, in 360k steps.
- No dropout: the training configuration drops .1 of attention's output. Here nothing is dropped, as
  in transformers.
- Rotary base: global layers begin with 10,000 and get 160,000 for length 8,192. Here they have that
  from the start, as the released configuration (`model.global_theta`).
- Initial values: the code begins as Megatron does, smaller where a layer ends. Here all weights
  have the deviation .02, as BERT's.
"""

from firth.configs import common, laptop
from firth.errors import FirthError
from firth.models.modernbert import size
from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, size="base", length=0, objective="mlm")
    if arg.objective not in ("mlm", "rtd"):
        raise FirthError(f"modernbert.py: objective={arg.objective!r}; expected mlm or rtd")
    masked = arg.objective == "mlm"
    length = arg.length or laptop.length("modernbert", arg.size, 1024)
    c = common.pretraining(steps=360_000, batch_size=4608)

    c.model = common.with_kernels(
        "modernbert",
        **size(arg.size),
        max_length=max(length, 1024),
        global_every=3,
        window=128,
        activation="gelu",
        dropout=0.0,
        attention_dropout=0.0,
    )

    c.data = common.data(view="packed", mode="sentences", length=length)

    rate = 0.3 if masked else 0.15
    c.objective = dict(
        name=arg.objective,
        masking="token",
        static=False,
        rate=rate,
        mask_rate=0.8 if masked else 0.85,
        random_rate=0.1 if masked else 0.0,
        max_predictions=round(rate * length),
    )
    if not masked:  # as ELECTRA
        c.objective.update(variant="electra", weight=50.0, width=0.25, sharing="embeddings")

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.98,
        eps=1e-6,
        bias_correction=True,
        weight_decay=1e-5,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    lr = 5e-4 if arg.size == "large" else 8e-4
    c.schedule = dict(name="xlnet_poly", lr=lr, warmup=0.002)
    return laptop.settle(c, "modernbert", arg.size)
