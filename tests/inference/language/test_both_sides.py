"""XLNet's scores from both sides of a token, against transformers; other models with --pseudo."""

import json

import numpy as np
import pytest
from helpers.published.bert import WORDS, add_tokenizer, make_bert
from helpers.published.families import make_model
from helpers.published.xlnet import make_xlnet

import firth
from firth import cli
from firth.errors import FirthError
from firth.inference.score import score

TEXTS = ["cats ran , dogs", "aa fishing abc", "the cat sat", "cat"]


@pytest.fixture
def xlnet(torch, tmp_path):
    """(directory, transformers model)."""
    model = make_xlnet(tmp_path / "xlnet", vocab_size=len(WORDS))
    add_tokenizer(tmp_path / "xlnet")
    return tmp_path / "xlnet", model


@pytest.mark.parametrize("within_word", [False, True])
def test_no_token_sees_the_one_that_is_predicted(torch, within_word, xlnet):
    """Nor the later pieces of its word, if asked."""
    directory, theirs = xlnet
    encoder = firth.load(directory)
    tokenizer = encoder.tokenizer
    found = score(encoder, TEXTS, pseudo=True, within_word=within_word)
    for text, scored in zip(TEXTS, found, strict=True):
        ids = tokenizer.encode([text])[0].ids.tolist()
        pieces = [token.startswith("##") for token in map(tokenizer.token, ids)]
        row, n, values = [*ids, tokenizer.sep_id, tokenizer.cls_id], len(ids), []
        for i, number in enumerate(ids):
            last = i
            while within_word and last + 1 < n and pieces[last + 1]:
                last += 1
            blocked = torch.zeros((1, n + 2, n + 2))
            blocked[:, :, i : last + 1] = 1
            with torch.no_grad():
                logits = theirs(
                    torch.tensor([row]),
                    token_type_ids=torch.tensor([[0] * (n + 1) + [2]]),
                    perm_mask=blocked,
                    target_mapping=torch.tensor(np.eye(n + 2)[None, [i]]).float(),
                ).logits
            values.append(float(logits[0, 0].log_softmax(-1)[number]))
        np.testing.assert_allclose(scored.log_probs, values, atol=1e-5)
        assert scored.kind == "pseudo"


def test_the_command_gives_them_where_asked(xlnet, tmp_path):
    directory, _ = xlnet
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    argv = f"score --model {directory} --input {tmp_path}/in.txt --output {tmp_path}/out.jsonl"
    for options, kind in ((["--pseudo"], "pseudo"), ([], "permutation")):
        assert cli.main([*argv.split(), *options]) == 0
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        own = score(firth.load(directory), TEXTS, pseudo=bool(options))
        for line, one in zip(lines, own, strict=True):
            np.testing.assert_allclose(line["log_probs"], one.log_probs, atol=2e-6)
            assert line["kind"] == kind


def test_a_masked_model_does_so_anyway_and_a_causal_one_cannot(torch, tmp_path):
    size, ends = len(WORDS), dict(eos_token_id=None, bos_token_id=None)
    make_bert(tmp_path / "bert", "BertForMaskedLM", vocab_size=size)
    make_model(tmp_path / "gpt2", "gpt2", "tanh", vocab_size=size, n_positions=40, **ends)
    for name in ("bert", "gpt2"):
        add_tokenizer(tmp_path / name)
    encoder = firth.load(tmp_path / "bert")
    [asked], [own] = score(encoder, ["cats"], pseudo=True), score(encoder, ["cats"])
    np.testing.assert_array_equal(asked.log_probs, own.log_probs)
    with pytest.raises(FirthError, match="gives causal scores, where a masked model or XLNet"):
        score(firth.load(tmp_path / "gpt2"), ["cats"], pseudo=True)
