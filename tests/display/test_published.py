"""What others report: each figure is of a metric and a split that the task has."""

from firth.data.tasks.task import TASKS
from firth.display import published
from firth.display.published import GLUE, OTHERS

SPLITS = [(task, TASKS[task].dev_splits[0]) for task in published.TASKS] + list(OTHERS)


def test_every_figure_is_of_a_split_and_a_metric_of_the_task():
    for task, split in SPLITS:
        found = published.published(task, split)
        assert found and split in TASKS[task].files
        for one in found:
            assert one.metric in ("", *TASKS[task].metrics) and 0.5 < one.value < 1.0, one
    assert all(len(figures) == len(published.TASKS) for *_, figures in GLUE)


def test_the_table_is_read_as_it_is_written():
    """Known figures: a first and a last column, a task measured otherwise, one that is missing."""
    rows = {
        (task, one.model): one for task, split in SPLITS for one in published.published(task, split)
    }
    assert rows["mnli", "RoBERTa-large"][1:3] == ("accuracy", 0.902)
    assert rows["stsb", "ELECTRA-small"][1:3] == ("spearman", 0.875)
    assert rows["cola", "DistilBERT"] == ("DistilBERT", "matthews", 0.513, "Sanh et al. 2019")
    assert rows["mrpc", "BERT-base"].metric == rows["qqp", "BERT-base"].metric == ""
    assert rows["qqp", "ELECTRA-base"].metric == "accuracy"
    assert rows["mrpc", "ALBERT-xxlarge"].metric == "accuracy"
    assert ("stsb", "MiniLM of 12 layers") not in rows and len(rows) == 8 * len(GLUE) - 1 + 2 + 10


def test_nothing_is_known_of_other_splits_and_tasks():
    for task, split in (("mrpc", "test"), ("mnli", "dev_mismatched"), ("imdb", "dev"), ("", "dev")):
        assert published.published(task, split) == []
