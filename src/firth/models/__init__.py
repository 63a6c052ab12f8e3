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
    "gpt": "firth.models.gpt",
    "gpt2": "firth.models.gpt2",
    "lstm": "firth.models.recurrent.lstm",
    "awd_lstm": "firth.models.recurrent.awd_lstm",
    "rhn": "firth.models.recurrent.rhn",
    "char_cnn_lstm": "firth.models.recurrent.char_cnn_lstm",
    "rnn": "firth.models.recurrent.elman",
    "elmo": "firth.models.elmo.bilm",
    "feedforward": "firth.models.feedforward.nplm",
    "tagger": "firth.models.tagger.bilstm",
}
# The names of families in transformers (`model_type`), where they differ from those here.
MODEL_TYPES = {"gpt": "openai-gpt"}
