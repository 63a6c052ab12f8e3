"""Logistic regression of texts by n-grams, gappy bigrams and capitals, without pretraining.

    firth train --config logistic.py --workdir runs/logistic --config.data.train=train.csv
    firth predict --model runs/logistic --input new.csv --output labelled.csv
    firth evaluate --model runs/logistic --data test.csv

Files, columns, labels, the dev split and the test split are those of finetune.py, and so are its
tasks: `logistic.py:task=sst2` with data.dir. Labels are classes; there is no regression of scores.

Arguments: `logistic.py:order=N,gap=N,capitals=BOOL,characters=N,weighting=NAME,task=NAME`.
NAME of `weighting` is counts, binary or tfidf.

scikit-learn's LogisticRegression finds the weights, once for each strength in `l2`. The one whose
model is best on dev by the task's metric is kept, the strongest of several. It is not fitted again
with dev: so dev says of the model that is saved what it says of a fine-tuned one.

Expected on the film snippets of the quick start: 72.6 % (majority 48.9 %), and 74.5 % of
`order=1,gap=0` (experiments/logistic).
"""

import ml_collections

from firth.recipe import parse_arg


def get_config(arg=None):
    arg = parse_arg(arg, task="", order=2, gap=3, capitals=True, characters=0, weighting="binary")
    c = ml_collections.ConfigDict()
    c.l2 = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # cost of half the square of a weight, in nats
    c.iterations = 1000  # of L-BFGS, at most
    c.heaviest = 8  # features of each label to print at the end

    c.model = dict(
        family="logistic",
        order=arg.order,  # words of the longest n-grams; 0: none
        gap=arg.gap,  # largest distance between the words of a gappy bigram; 0: none
        capitals=arg.capitals,  # words with their shape, and how many words have it
        characters=arg.characters,  # of the longest n-grams of characters; 0: none
        characters_from=2,  # of the shortest
        lower=True,  # n-grams of the text in lower case
        pattern=r"\w+(?:['\u2019]\w+)*|[^\w\s]",  # of words, a regular expression
        weighting=arg.weighting,  # counts, binary or tfidf
        min_texts=2,  # of train that a feature occurs in
    )

    c.data = dict(
        task=arg.task,
        dir="",  # of the task's files; the base of relative paths
        train="",  # files of one's own: CSV, TSV or JSONL
        dev="",
        test="",  # scored at the end
        dev_fraction=0.1,  # of train, where there is no dev split
        text="",  # a column, or two with a comma between; "": found by its name
        label="",
        kind="",  # "classification": labels that are numbers are no scores
    )
    return c
