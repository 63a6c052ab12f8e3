"""The model families: one file each, and one line here that names it."""

FAMILIES = {
    "bert": "firth.models.bert",
    "roberta": "firth.models.roberta",
    "albert": "firth.models.albert",
    "distilbert": "firth.models.distilbert",
    "electra": "firth.models.electra",
    "modernbert": "firth.models.modernbert",
    "xlnet": "firth.models.xlnet",
    "transformer_xl": "firth.models.transformer_xl",
}
