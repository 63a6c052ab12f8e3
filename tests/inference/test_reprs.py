"""What Python shows of an encoder and its outputs: short, with shapes instead of arrays."""

import numpy as np
from helpers.published.bert import make_bert

import firth
from firth.inference.encoder import Representation
from firth.inference.fill import Choice, Filled
from firth.inference.generate import Generated
from firth.inference.score import Scored


def test_an_encoder_and_its_output(torch, tmp_path):
    theirs = make_bert(tmp_path / "m", "BertForPreTraining", "gelu")
    encoder = firth.load(tmp_path / "m")
    text = repr(encoder)
    config, count = theirs.config, sum(p.numel() for p in theirs.parameters())
    assert text.startswith(f"Encoder(bert, {config.num_hidden_layers} x {config.hidden_size}; ")
    assert f"{count:,} parameters" in text and "heads mlm, nsp" in text
    assert "no tokenizer" in text and text.endswith(f"from {tmp_path / 'm'})")
    tokens = np.array([[2, 3, 4], [2, 3, 0]])
    out = encoder(tokens=tokens, mask=tokens > 0)
    n, d, v = config.num_hidden_layers + 1, config.hidden_size, config.vocab_size
    assert repr(out) == (
        f"Representation(2 texts, 5 tokens; hidden [{n}, 2, 3, {d}], pooled [2, {d}], "
        f"logits['mlm'] [2, 3, {v}], logits['nsp'] [2, 2])"
    )


def test_an_output_without_what_is_missing():
    ids = np.zeros((1, 2), np.int32)
    hidden = np.zeros((3, 1, 2, 4), np.float32)
    out = Representation([["a", "b"]], ids, ids, ids == 0, hidden, None, {}, None)
    assert repr(out) == "Representation(1 text, 2 tokens; hidden [3, 1, 2, 4])"


def test_choices_continuations_and_scores():
    choices = tuple(Choice(f"w{i}", i, 0.5 / (i + 1), "a text") for i in range(7))
    assert repr(Filled(0, 2, choices[:2])) == "Filled(row 0, position 2: w0 0.500, w1 0.250)"
    assert repr(Filled(0, 2, choices)).endswith("w4 0.100, ...)")
    one = Generated(1, 0, " sat on the mat", (5, 6, 7), "length")
    assert repr(one) == "Generated(row 1, sample 0: ' sat on the mat', 3 tokens, ends by 'length')"
    assert len(repr(Generated(0, 0, "long " * 99, tuple(range(99)), "stop"))) < 120
    scored = Scored(("a", "b"), (4, 5), np.array([-1.5, -2.0], np.float32), "pseudo")
    assert repr(scored) == "Scored(2 tokens, pseudo, total -3.5 nats)"
