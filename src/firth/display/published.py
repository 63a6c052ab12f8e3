"""What others report on tasks that have a name: figures to set a model's own beside."""

from typing import NamedTuple

SANH = "Sanh et al. 2019"
TASKS = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb")
# Of GLUE's dev sets (MNLI's is the matched one) in points, in the order of TASKS: each of one model
# trained on one task; those of Sanh et al. and of RoBERTa are medians of five seeds.
GLUE = (
    ("BERT-base", SANH, (84.7, 91.8, 89.6, 69.3, 92.7, 88.6, 56.3, 89.0)),
    ("DistilBERT", SANH, (82.1, 89.2, 88.5, 59.9, 91.3, 87.5, 51.3, 86.9)),
    ("MiniLM of 12 layers", "Wang et al. 2020", (85.7, 91.5, 91.3, 73.3, 93.0, 89.5, 58.5, None)),
    ("RoBERTa-base", "Liu et al. 2019", (87.6, 92.8, 91.9, 78.7, 94.8, 90.2, 63.6, 91.2)),
    ("RoBERTa-large", "Liu et al. 2019", (90.2, 94.7, 92.2, 86.6, 96.4, 90.9, 68.0, 92.4)),
    ("ALBERT-xxlarge", "Lan et al. 2020", (90.8, 95.3, 92.2, 89.2, 96.9, 90.9, 71.4, 93.0)),
    ("XLNet-large", "Yang et al. 2019", (89.8, 93.9, 91.8, 83.8, 95.6, 89.2, 63.6, 91.8)),
    ("ELECTRA-small", "Clark et al. 2020", (81.3, 88.4, 89.0, 66.7, 91.2, 88.0, 57.0, 87.5)),
    ("ELECTRA-base", "Clark et al. 2020", (88.8, 93.2, 91.5, 82.7, 95.1, 89.5, 67.7, 91.2)),
)
# What they are measured by; of the tasks with two metrics where it is known, by source.
METRICS = dict.fromkeys(("mnli", "qnli", "rte", "sst2"), "accuracy") | {"cola": "matthews"}
ACCURACY = {"qqp": "accuracy", "mrpc": "accuracy"}
OF_TWO = {
    "Wang et al. 2020": {"qqp": "accuracy"},
    "Liu et al. 2019": ACCURACY,
    "Lan et al. 2020": ACCURACY,
    "Yang et al. 2019": ACCURACY,
    "Clark et al. 2020": ACCURACY | {"stsb": "spearman"},
}
# (task, split) -> (model, source, points) by accuracy.
OTHERS = {
    ("wnli", "dev"): (("BERT-base", SANH, 53.5), ("DistilBERT", SANH, 56.3)),
    ("sst5", "test"): (
        ("BCN with CoVe", "McCann et al. 2017", 53.7),
        ("BCN", "Peters et al. 2018", 51.4),
        ("BCN with ELMo", "Peters et al. 2018", 54.7),
    ),
    ("imdb", "test"): (
        ("ULMFiT", "Howard and Ruder 2018", 95.4),
        ("DistilBERT", SANH, 92.8),
        ("XLNet-large", "Yang et al. 2019", 96.21),
    ),
    ("agnews", "test"): (("ULMFiT", "Howard and Ruder 2018", 95.0),),
    ("race", "test"): (
        ("GPT", "Radford et al. 2018", 59.0),
        ("XLNet-large", "Yang et al. 2019", 81.75),
        ("ALBERT-xxlarge", "Lan et al. 2020", 86.5),
    ),
}


class Published(NamedTuple):
    """A figure of others. metric: "" where it is not known. value: a share, not points."""

    model: str
    metric: str
    value: float
    source: str


def published(task: str, split: str) -> list[Published]:
    """What others report on a split of a task; [] where nothing is known."""
    if (task, split) in OTHERS:
        return [
            Published(model, "accuracy", points / 100, source)
            for model, source, points in OTHERS[task, split]
        ]
    if task not in TASKS or split != ("dev_matched" if task == "mnli" else "dev"):
        return []
    found = []
    for model, source, figures in GLUE:
        points = figures[TASKS.index(task)]
        metric = (METRICS | OF_TWO.get(source, {})).get(task, "")
        if points is not None:
            found.append(Published(model, metric, points / 100, source))
    return found
