"""An n-gram model through an ARPA file and back, by the command and as others read it."""

import math
import re

import numpy as np
import pytest

from firth.cli import main
from firth.errors import FirthError
from firth.inference.language.ngram import NgramLM
from firth.tokenizers.train_words import word_vocabulary
from firth.weights.arpa import from_arpa, to_arpa

TEXTS = ["the dog sat", "a cat sat on the mat", "the zebra sat"]  # no zebra in training


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a 3-gram model of made-up sentences."""
    folder, rng = tmp_path_factory.mktemp("arpa"), np.random.default_rng(0)
    words = ["the", "a", "dog", "cat", "mat", "sat", "on", "old", "new", "saw"]
    lines = [" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(300)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    prepare = f"prepare --input {folder}/train.txt --tokenizer {folder}/tok --train-tokenizer word"
    assert main([*prepare.split(), "--sentences=line", f"--output={folder}/train"]) == 0
    fields = [f"--config.data.store={folder}/train", "--config.model.discount_fallback=(.5,1,1.5)"]
    assert main(["train", "--config=ngram.py:order=3", f"--workdir={folder}/run", *fields]) == 0
    return folder / "run"


def score(model, text) -> float:
    tokens = model.tokenizer.encode([text])[0].ids.tolist()
    return float(model.score([[*tokens, model.tokenizer.end_id]])[0].sum())


def test_there_and_back_by_the_command(trained, tmp_path, capsys):
    file, back = tmp_path / "model.arpa", tmp_path / "back"
    assert main(["convert", f"--from={trained}", f"--to={file}"]) == 0
    assert main(["convert", f"--from={file}", f"--to={back}"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    orders = re.search("n-grams of orders 1 to 3: .*", first).group()
    assert first == f"{file}: {orders}" and second == f"{back}: {orders}"
    one, other = NgramLM(trained), NgramLM(back)
    assert set(other.tokenizer.vocab) == set(one.tokenizer.vocab)
    for text in TEXTS:
        assert score(other, text) == pytest.approx(score(one, text), abs=1e-5)


def test_others_read_the_ends_and_the_unknown_word_by_their_names(trained, tmp_path):
    to_arpa(trained, tmp_path / "model.arpa")
    unigrams = (tmp_path / "model.arpa").read_text().split("\\2-grams:")[0].splitlines()
    listed = {line.split("\t")[1]: line.split("\t")[0] for line in unigrams if "\t" in line}
    assert {"<s>", "</s>", "<unk>", "dog"} <= listed.keys() and "<eos>" not in listed
    model = NgramLM(trained)
    ends = model.model.log_probs[0][model.tokenizer.end_id] / math.log(10)
    assert float(listed["</s>"]) == pytest.approx(ends, rel=1e-6)


def test_a_failed_file_leaves_no_folder(trained, tmp_path):
    to_arpa(trained, tmp_path / "model.arpa")
    text = (tmp_path / "model.arpa").read_text()
    (tmp_path / "cut.arpa").write_text(text[: len(text) // 2])
    with pytest.raises(FirthError, match="cut off or damaged"):
        from_arpa(tmp_path / "cut.arpa", tmp_path / "new")
    (tmp_path / "twice.arpa").write_text(text.replace("\tdog\t", "\t<eos>\t", 1))
    with pytest.raises(FirthError, match=r"twice|back off"):
        from_arpa(tmp_path / "twice.arpa", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(FirthError, match="vocabulary has 'a' twice"):
        word_vocabulary(["<unk>", "<eos>", "a", "a"])
