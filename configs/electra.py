"""ELECTRA: detect the tokens that a small generator replaced (Clark et al. 2020).

    firth prepare --input 'corpus/*.txt' --tokenizer tok/ --output store/
    firth train --config electra.py:small --workdir runs/electra --config.data.store=store/

Arguments: `electra.py:SIZE[,length=N][,variant=electra|electra_15|replace_mlm|all_tokens|mlm]
[,sharing=embeddings|none|all][,paper=False]`. SIZE is tiny, mini, small, base or large; `length` is
0 for the size's own. The variants are the ablations of section 3.4, which no released code
contains; `mlm` is the plain masked LM of the same body.

The generator shares the embeddings with the model. In tiny they share all (`sharing`): one body
fills in and detects, as section 3.2 tries for equal sizes, and masks a quarter. From one bit a
token alone, a body of that size learns almost nothing in ten minutes.

small is the paper's, which takes days. tiny, mini and small with paper=False have settings of their
own (laptop.py): ten minutes and two hours on two cores, an hour on one GPU. experiments/
small_recipes says what they reach.

The paper trains small on one V100 for 4 days (1M steps of 128 rows at length 128), base for 766k
steps of 256 rows at 512 and large for 400k steps of 2,048. Expected GLUE dev average: small 79.9,
base 85.1; of the variants (base size, 1M steps): ELECTRA 85.0, All-tokens MLM 84.3, Replace MLM
82.4, ELECTRA 15 % 82.4, BERT 82.2 (table 5).

Departures from the paper and its code:
- Distinct positions: the code draws with replacement, so that 13.8 % are masked and some count
  twice. Here they are drawn without, as the paper says (`objective.legacy_with_replacement`).
- One segment: the code makes two segments of most rows and gives one in twenty a random length.
  Here rows are full and of one segment: no pair objective needs two, and padding teaches nothing.
- Large: the paper trains it for 400k and for 1.75M steps, and the released small for 4M with a
  generator as wide as itself. Here it is table 6 with 400k.
"""

from firth.configs import common, laptop
from firth.errors import FirthError
from firth.models.electra import size
from firth.objectives.rtd import VARIANTS
from firth.recipe import parse_arg

# size -> (batch size, steps, lr, length, generator's width, share of tokens masked); table 6
SETTINGS = {
    "small": (128, 1_000_000, 5e-4, 128, 0.25, 0.15),
    "base": (256, 766_000, 2e-4, 512, 1 / 3, 0.15),
    "large": (2048, 400_000, 2e-4, 512, 0.25, 0.25),
}
# Share of tokens masked and lambda of tiny's one body (experiments/small_recipes)
ONE_BODY = (0.25, 5.0)


def get_config(arg=None):
    arg = parse_arg(arg, size="small", length=0, variant="electra", sharing="", paper=True)
    if arg.variant != "mlm" and arg.variant not in VARIANTS:
        raise FirthError(
            f"electra.py: variant={arg.variant!r} is unknown; one of {', '.join(VARIANTS)}, mlm"
        )
    batch_size, steps, rate, length, width, masked = SETTINGS.get(arg.size, SETTINGS["small"])
    if arg.size in SETTINGS and arg.size != "small" and not arg.paper:
        raise FirthError(f"electra.py:{arg.size} has the paper's settings alone; leave paper=False")
    small = None if arg.size == "small" and arg.paper else arg.size  # with settings in laptop.py
    length = arg.length or laptop.length("electra", small, length)
    sharing = arg.sharing or ("all" if small == "tiny" else "embeddings")
    weight = 50.0  # lambda of section 3.2
    if sharing == "all" and arg.variant != "mlm":
        width = 1.0
        masked, weight = ONE_BODY if small == "tiny" else (masked, weight)
    c = common.pretraining(steps=steps, batch_size=batch_size)

    c.model = common.with_kernels(
        "electra",
        **size(arg.size),
        max_length=512,
        type_vocab_size=2,
        activation="gelu",
        dropout=0.1,
        attention_dropout=0.1,
    )

    c.data = common.data(view="packed", mode="sentences", length=length)

    c.objective = dict(
        name="rtd",
        masking="token",
        static=False,
        rate=masked,
        mask_rate=0.85,  # the rest keeps its token; nothing is replaced at random
        random_rate=0.0,
        max_predictions=int((masked + 0.005) * length),  # configure_pretraining.py
    )
    if arg.variant == "mlm":
        c.objective.update(name="mlm", pairs="none")
    else:
        c.objective.update(
            variant=arg.variant,
            weight=weight if arg.variant.startswith("electra") else 1.0,
            generator_weight=1.0,
            temperature=1.0,
            correct=True,  # False: the generator never draws the original token
            width=width,  # of the generator, as a fraction of the model's
            depth=1.0,
            sharing=sharing,  # or "none", "all"
            generator_from="",  # two stages: a masked LM to sample from, trained no further
            legacy_with_replacement=False,  # True: masks as in the released code, about 13.8 %
        )

    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=False,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
    )
    c.schedule = dict(name="electra_linear", lr=rate, warmup=10_000 / steps)
    return laptop.settle(c, "electra", small)
