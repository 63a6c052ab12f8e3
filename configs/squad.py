"""Fine-tune an encoder to answer questions by spans of a text (Devlin et al. 2019, section 4.2).

    firth train --config squad.py:v1,init=DIR --workdir runs/squad \\
        --config.data.train=train-v1.1.json --config.data.dev=dev-v1.1.json
    firth evaluate --model runs/squad --data dev-v1.1.json
    firth predict --model runs/squad --input questions.jsonl --output answers.jsonl

Arguments: `squad.py[:v1|v2][,init=DIR][,family=NAME][,size=NAME][,length=N][,frozen=true]`. Files
are SQuAD's JSON (plain, .gz or .xz). In `v2` a question may have no answer in its text; in `v1`
such a question is an error. An answer that is not where its answer_start says is one too, unless
data.misplaced=skip.

`init` is a published directory, a Firth directory, a workdir, hf:org/name, or minilm. `frozen=true`
trains the head alone. `length` is that of the longest row, 0 for the family's own; longer texts are
read in windows of so many tokens, data.stride from one to the next. `family` says whose paper the
settings are of (default bert), and `size` which of ELECTRA's (small, base or large):

    family      rate               batch    long             what else
    bert        5e-5               32, 48   3 epochs, 2      v1 first; warm-up over a tenth
    roberta     1.5e-5             48       2 epochs         warm-up .06, decay of all, b2 .98,
                                                     no clipping
    albert      5e-5, 3e-5         48       3,649 and 8,144  dropout 0, .1 before the head; rows of
                                            steps            384 and 512
    electra     3e-4, 1e-4, 5e-5   32       2 epochs         no decay; each layer's rate .8 (large:
                by size                                      .9) of that above it; rows of 512
    xlnet       3e-5               48       8,000 steps      each layer's rate .75 of that above it,
                                                             the top one's that of the head; rows
                                                             of 512, answers of 64
    distilbert  as bert                                      dropout .1 before the head

Measured: exact match and F1 by the rules of SQuAD's scripts, as shares; dev/f1 chooses the best
checkpoint. In v2 also those of questions with and without an answer, and the best threshold for the
odds of no answer; objective.null_threshold is the one in use. Expected on dev (exact match, F1):
BERT-base 80.8, 88.5 on v1.1; BERT-large 84.1, 90.9, and 78.7, 81.9 on v2.0.

Departures from the papers and their code:
- Padding has no probability: BERT's loss is over all places of a row, padding included, and here
  rows have the length of their batch.
- Answers: a span is a substring of the text. BERT's code puts word pieces together and aligns them
  with the words.
- All spans: the best of all begins and ends, where BERT's code has the 20 best of both.
- One head: ALBERT (v2), ELECTRA and XLNet predict the end from the begin, by beam search, and v2's
  questions without answer by a classifier. Here every family has BERT's two logits a token, as the
  published heads of transformers, and [CLS] stands for no answer.
- Bias correction: BERT's Adam has none; it steadies small data (Mosbach et al. 2021). The families
  after BERT are as their code has them.
- No drop after the warm-up: the rate goes on from its peak. BERT's falls to where it would be
  without a warm-up, a tenth lower.
- One rate: RoBERTa and XLNet state the settings of their large models. Those are here for every
  size; others are an override away.
- Decay of layers: XLNet's code scales gradients, which Adam scales back. Here rates are scaled, as
  the paper says: the top layer has the head's, and so have the embeddings, as in the code.
- Rows of 384: RoBERTa's paper gives no length and no stride; these are BERT's. DistilBERT's gives
  nothing but its dropout.
"""

from firth.configs import common
from firth.errors import FirthError
from firth.recipe import parse_arg, suggest, with_fields

VERSIONS = ("v1", "v2")
# What a family's paper has other than BERT's, for both versions or by version.
FAMILIES = {
    "bert": {"batch_size": {"v1": 32, "v2": 48}, "epochs": {"v1": 3.0, "v2": 2.0}},
    "roberta": {
        "batch_size": 48,
        "epochs": 2.0,
        "optimizer.b2": 0.98,
        "optimizer.decay_exclude": (),
        "optimizer.clip_norm": 0.0,
        "schedule.name": "fairseq_polynomial",
        "schedule.lr": 1.5e-5,
        "schedule.warmup": 0.06,
    },
    "albert": {
        "batch_size": 48,
        "steps": {"v1": 3649, "v2": 8144},
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "model.classifier_dropout": 0.1,
        "data.length": {"v1": 384, "v2": 512},
        "optimizer.bias_correction": False,
        "schedule.name": "albert_poly",
        "schedule.lr": {"v1": 5e-5, "v2": 3e-5},
        "schedule.warmup": {"v1": 365, "v2": 814},
    },
    "electra": {
        "epochs": 2.0,
        "data.length": 512,
        "optimizer.bias_correction": False,
        "optimizer.weight_decay": 0.0,
        "schedule.name": "electra_linear",
    },
    "xlnet": {
        "batch_size": 48,
        "steps": 8000,
        "data.length": 512,
        "objective.max_answer": 64,
        "optimizer.bias_correction": False,
        "optimizer.layer_decay": 0.75,
        "optimizer.layer_decay_top": 0,
        "optimizer.layer_decay_exclude": ("^encoder/(word|mask_embedding)",),
        "schedule.lr": 3e-5,
        "schedule.warmup": 1000,
    },
    "distilbert": {
        "batch_size": {"v1": 32, "v2": 48},
        "epochs": {"v1": 3.0, "v2": 2.0},
        "model.classifier_dropout": 0.1,
    },
}
# ELECTRA's size -> (lr, layer decay)
SIZES = {"small": (3e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}


def changes_of(version: str, family: str, size: str) -> dict:
    """{field: value} of what a family's paper has other than BERT's.

    Raises FirthError for a version, family or size without settings of its own.
    """
    if version not in VERSIONS:
        raise FirthError(f"squad.py: version={version!r} is unknown{suggest(version, VERSIONS)}")
    if family not in FAMILIES:
        raise FirthError(f"squad.py: family={family!r} is unknown{suggest(family, FAMILIES)}")
    if size not in SIZES:
        raise FirthError(f"squad.py: size={size!r} is unknown{suggest(size, SIZES)}")
    changes = {
        field: value[version] if isinstance(value, dict) else value
        for field, value in FAMILIES[family].items()
    }
    if family == "electra":
        changes["schedule.lr"], changes["optimizer.layer_decay"] = SIZES[size]
    return changes


def get_config(arg=None):
    arg = parse_arg(arg, version="v1", init="", length=0, frozen=False, family="bert", size="base")
    changes = changes_of(arg.version, arg.family, arg.size)
    changes |= {"data.length": arg.length} if arg.length else {}
    c = common.run(
        seeds="",  # "0,1,2": one run each under <workdir>/seed-N, and a summary
        epochs=3.0,
        steps=0,  # 0: as many as the epochs make
        batch_size=32,  # windows
        init_from=arg.init,
        settings=arg.family,  # whose paper's these are
        freeze="",  # parameters not to train, as in embeddings,0-3 (docs/finetune.md)
        patience=0,  # end after so many evaluations without a better one; 0: never
        log_every=50,
        eval=dict(every=0, epochs=1.0, batch_size=64),  # every: steps; 0: by epochs
    )
    c.checkpoint.update(every=0, keep=1, best="task")

    c.model = common.execution(
        from_init=True,  # family and dimensions are those of the weights
        dropout=0.1,
        attention_dropout=0.1,
        classifier_dropout=0.0,  # before the head
    )

    c.data = common.loading(
        task="",  # its name in logs
        dir="",  # the base of relative paths
        train="",  # SQuAD's JSON
        dev="",
        test="",  # scored at the end, if it has answers
        unanswerable=arg.version == "v2",  # whether a question may have no answer
        misplaced="refuse",  # "skip": leave out questions whose answer is not at its place
        tokenizer="",  # "": the one that comes with the weights
        length=384,  # tokens of a row
        stride=128,  # tokens from one window of a text to the next
        question_length=64,  # tokens of a question that are read
    )

    c.objective = dict(
        name="answer",
        max_answer=30,  # tokens of an answer
        null_threshold=0.0,  # v2: no answer where its odds are above this
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
        layer_decay_top=1,  # factors of the top layer
        layer_decay_exclude=(),  # expressions of parameters that keep the head's rate
        freeze=("^encoder/",) if arg.frozen else (),
    )
    c.schedule = dict(name="xlnet_poly", lr=5e-5, warmup=0.1)
    return with_fields(c, changes)
