"""What a run starts from: published weights, another run, and what is fresh in them."""

import numpy as np
import pytest
from helpers.published.bert import add_tokenizer, make_bert
from helpers.runs import arguments, final_state, logged

from firth.cli import main
from firth.weights.read import read_model

TEXTS = [
    ("the cat sat on the mat", "1"),
    ("dogs ate", "0"),
    ("a fish and a cat ran", "1"),
    ("the food", "0"),
    ("cats sat", "1"),
    ("the dog ran and ate the fish", "0"),
    ("a dog", "1"),
    ("a mat and a cat", "0"),
]

EVERY = {"checkpoint.every": 1, "checkpoint.keep": 2}  # so that both steps are kept


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A folder with train.csv and dev.csv of eight texts."""
    folder = tmp_path_factory.mktemp("task")
    for split in ("train", "dev"):
        rows = "".join(f"{text},{label}\n" for text, label in TEXTS)
        (folder / f"{split}.csv").write_text("sentence,label\n" + rows)
    return folder


def finetune(task, init, workdir, steps=2, frozen="false", **fields):
    """Fine-tune without dropout, the whole of train in every batch; returns the workdir."""
    quiet = ("dropout", "attention_dropout", "classifier_dropout")
    argv = [
        f"--config=finetune.py:task=custom,length=16,init={init},frozen={frozen}",
        f"--workdir={workdir}",
        *(f"--config.data.{split}={task}/{split}.csv" for split in ("train", "dev")),
        *(f"--config.model.{name}=0.0" for name in quiet),
        "--config.batch_size=8",
        f"--config.steps={steps}",
        "--config.log_every=1",
        "--config.schedule.name=constant",
        "--config.schedule.warmup=0",
        "--config.progress=False",
        "--config.data.loader=thread",
        *(f"--config.{name}={value}" for name, value in fields.items()),
    ]
    assert main(["train", *argv]) == 0
    return workdir


def moved(init, workdir) -> set[str]:
    """Parameters of the body and the pooler that are not those of `init` after two steps."""
    before, state = read_model(init).params["encoder"], final_state(workdir, 2)
    changed = set()
    for name, value in state.items():
        if not name.startswith("['params']['encoder']"):
            continue
        leaf = before
        for part in name.removeprefix("['params']['encoder']").strip("[]'").split("']['"):
            leaf = leaf.get(part, {})
        if not isinstance(leaf, np.ndarray) or not np.array_equal(leaf, value):
            changed.add("/".join(name.strip("[]'").split("']['")[2:4]))
    return changed


def test_the_first_loss_is_that_of_the_loaded_weights(task, tmp_path):
    """transformers' loss of the same texts: body, pooler and classifier are all loaded."""
    import torch

    model = make_bert(tmp_path / "init", "BertForSequenceClassification", vocab_size=72)
    tokenizer = add_tokenizer(tmp_path / "init")
    texts, labels = zip(*TEXTS, strict=True)
    batch = tokenizer(list(texts), padding=True, return_tensors="pt")
    with torch.no_grad():
        loss = model(**batch, labels=torch.tensor([int(label) for label in labels])).loss.item()
    run = finetune(task, tmp_path / "init", tmp_path / "run")
    first = next(line for line in logged(run) if "train/loss" in line)
    assert first["step"] == 1
    np.testing.assert_allclose(first["train/loss"], loss, rtol=1e-5)
    assert abs(loss - np.log(2)) > 0.05, "random weights would give the same"


def test_frozen_trains_the_head_and_the_pooler_alone(task, tmp_path):
    make_bert(tmp_path / "init", "BertForPreTraining", vocab_size=72)
    add_tokenizer(tmp_path / "init")
    run = finetune(task, tmp_path / "init", tmp_path / "run", frozen="true", **EVERY)
    assert moved(tmp_path / "init", run) == {"pooler/kernel", "pooler/bias"}
    name = "['params']['classifier']['dense']['kernel']"
    assert not np.array_equal(*(final_state(run, step)[name] for step in (1, 2)))


def test_freezing_trains_a_pooler_that_the_weights_lack(task, tmp_path):
    """A masked LM has none; it would stay at random values that nobody chose."""
    make_bert(tmp_path / "init", "BertForMaskedLM", vocab_size=72)
    add_tokenizer(tmp_path / "init")
    assert "pooler" not in read_model(tmp_path / "init").params["encoder"]
    run = finetune(task, tmp_path / "init", tmp_path / "run", freeze="encoder", **EVERY)
    assert moved(tmp_path / "init", run) == {"pooler/kernel", "pooler/bias"}
    for leaf in ("kernel", "bias"):
        name = f"['params']['encoder']['pooler']['{leaf}']"
        assert not np.array_equal(final_state(run, 2)[name], final_state(run, 1)[name]), leaf


def still(store, workdir, steps=2, **changes):
    """Pretrain at a rate of zero: the parameters stay what the run started from."""
    fields = {"steps": steps, "eval.every": 0, "checkpoint.every": 0, "schedule.lr": 0.0}
    given = arguments(store, workdir, "feedforward.py:tiny", **fields | changes)
    others = ("--config.model", "--config.optimizer")  # the recipe has its own
    argv = [word for word in given if not word.startswith(others)]
    assert main(["train", *map(str, argv)]) == 0
    state = final_state(workdir, steps)
    return {name: value for name, value in state.items() if name.startswith("['params']")}


def test_the_order_of_what_a_run_starts_from(store, tmp_path):
    """`resume`, then `init_from`, then random values; a workdir of its own is test_stages' part."""
    one, other = (still(store, tmp_path / name, seed=n) for n, name in enumerate("ab"))
    differ = [name for name in one if not np.array_equal(one[name], other[name])]
    assert len(differ) > 2
    from_one = still(store, tmp_path / "c", init_from=tmp_path / "a", seed=2)
    for name, value in one.items():
        np.testing.assert_array_equal(from_one[name], value, err_msg=name)
    both = {"init_from": tmp_path / "a", "resume": tmp_path / "b"}
    resumed = still(store, tmp_path / "d", 3, seed=3, **both)
    for name, value in other.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
