"""What Firth knows of the tasks of GLUE, against GLUE and TFDS."""

from firth.data.tasks.task import GLUE


def test_label_order_is_by_name():
    assert GLUE["rte"].labels == GLUE["qnli"].labels == ("entailment", "not_entailment")
    assert GLUE["mnli"].labels == ("entailment", "neutral", "contradiction")
    assert GLUE["wnli"].names == ("not_entailment", "entailment")
    for task in GLUE.values():
        assert (task.kind == "regression") == (task.labels == ())


FACTS = {  # metrics by which GLUE ranks, and label strings of a submission: its FAQ and scorer
    "cola": (("matthews",), ("0", "1")),
    "sst2": (("accuracy",), ("0", "1")),
    "mrpc": (("f1", "accuracy"), ("0", "1")),
    "stsb": (("pearson", "spearman"), ()),
    "qqp": (("f1", "accuracy"), ("0", "1")),
    "mnli": (("accuracy",), ("entailment", "neutral", "contradiction")),
    "qnli": (("accuracy",), ("entailment", "not_entailment")),
    "rte": (("accuracy",), ("entailment", "not_entailment")),
    "wnli": (("accuracy",), ("0", "1")),
    "ax": (("matthews",), ("entailment", "neutral", "contradiction")),
}


def test_the_tasks_are_those_of_glue_and_their_labels_those_of_tfds():
    """What TFDS's own builder calls the classes, in the order of the numbers in the files."""
    assert GLUE.keys() == FACTS.keys()
    for name, (metrics, labels) in FACTS.items():
        task = GLUE[name]
        assert task.metrics[: len(metrics)] == metrics and task.main_metric == metrics[0]
        assert task.labels == labels
        assert task.limits == ((0.0, 5.0) if name == "stsb" else None)
    from tensorflow_datasets.text import glue

    for config in glue.Glue.BUILDER_CONFIGS:
        if config.name in GLUE:
            task = GLUE[config.name]
            assert list(task.names or task.labels) == (config.label_classes or [])
            columns = [theirs for theirs in config.text_features.values() if theirs]
            assert list(task.text_columns) == (columns or ["#1 String", "#2 String"])
            if config.name not in ("cola", "ax"):  # files without a header, or without labels
                assert task.label_column == config.label_column
