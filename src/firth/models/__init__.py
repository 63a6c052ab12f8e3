"""The model families: one file each, and one line here that names it."""

FAMILIES = {
    "bert": "firth.models.bert",
}
