"""Training of subword tokenizers against the papers' algorithm in plain Python."""

import itertools
import os
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from helpers.texts import SENTENCES, assert_same

from firth.tokenizers.load import load_tokenizer, train_tokenizer


def reference_merges(texts, vocab, count, min_frequency):
    """BPE (Sennrich et al. 2016, algorithm 1) with WordPiece's ##; ties go to lower ids."""
    words = Counter(word for text in texts for word in text.split())
    ids = {token: n for n, token in enumerate(vocab)}
    spelled = {w: [c if n == 0 else f"##{c}" for n, c in enumerate(w)] for w in words}
    merged = []
    while len(merged) < count:
        pairs = Counter()
        for word, pieces in spelled.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda p: (-pairs[p], ids[p[0]], ids[p[1]]), default=None)
        if best is None or pairs[best] < min_frequency:
            break
        new = best[0] + best[1].removeprefix("##")
        merged.append(new)
        ids.setdefault(new, len(ids))
        for word, pieces in spelled.items():
            joined, n = [], 0
            while n < len(pieces):
                if tuple(pieces[n : n + 2]) == best:
                    joined.append(new)
                    n += 2
                else:
                    joined.append(pieces[n])
                    n += 1
            spelled[word] = joined
    return merged


def test_trained_wordpiece_is_the_papers():
    texts = [s.lower().replace(".", "").replace(",", "") for s in SENTENCES]
    tokenizer = train_tokenizer("wordpiece", texts, 90)
    letters = sorted({c for t in texts for c in t if c != " "})
    tails = sorted({c for t in texts for w in t.split() for c in w[1:]})
    base = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in tails)]
    merges = reference_merges(texts, base, 90 - len(base), min_frequency=2)
    assert len(merges) > 20
    assert tokenizer.vocab == base + merges


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_saved_layout_loads_in_transformers(kind, tmp_path, articles):
    import transformers

    vocab_size = {"wordpiece": 1500, "bpe": 1200, "unigram": 1000}[kind]
    tokenizer = train_tokenizer(kind, articles, vocab_size)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == tokenizer.vocab_size <= vocab_size
    assert theirs.mask_token_id == tokenizer.mask_id and theirs.pad_token_id == tokenizer.pad_id
    texts = articles[:200]
    if kind == "unigram":  # ties between segmentations of equal score apart
        ours = [e.ids.tolist() for e in tokenizer.encode(texts)]
        same = [
            a == theirs(t, add_special_tokens=False)["input_ids"]
            for t, a in zip(texts, ours, strict=True)
        ]
        assert np.mean(same) > 0.98
    else:
        assert_same(tokenizer, theirs, texts)
    first = theirs("the vase")["input_ids"]
    assert (first[0], first[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
    again = load_tokenizer(tmp_path)
    assert again.describe() == tokenizer.describe() and again.chunks == tokenizer.chunks
    for file in tmp_path.glob("vocab.*"):  # the older layout means the same
        assert load_tokenizer(file).digest == tokenizer.digest
    restored = pickle.loads(pickle.dumps(tokenizer))
    assert restored.digest == tokenizer.digest
    assert restored.encode_flat(texts)[0].tolist() == tokenizer.encode_flat(texts)[0].tolist()


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_training_is_deterministic(kind, tmp_path, shared_data):
    """Ties abound in little text, and the library's hash tables are seeded anew in each process."""
    corpus = shared_data("vocabs/bert-base-multilingual-cased-vocab.txt")
    program = (
        "import sys; from firth.tokenizers.load import train_tokenizer\n"
        "lines = open(sys.argv[2], encoding='utf-8').read().split('\\n')[:40000:7]\n"
        "print(train_tokenizer(sys.argv[1], lines, 3000).digest)"
    )
    digests = set()
    for threads in ("1", "2", "4"):
        done = subprocess.run(
            [sys.executable, "-c", program, kind, str(corpus)],
            env=os.environ | {"RAYON_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def test_casing_and_special_tokens_come_from_options():
    words = " ".join(SENTENCES).split() * 5
    cased = train_tokenizer("wordpiece", words, 200, lowercase=False)
    assert "T" in cased.vocab
    lower = train_tokenizer("wordpiece", ["Café résumé"] * 9, 60)
    assert "é" not in "".join(lower.vocab)
    accents = train_tokenizer("wordpiece", ["Café résumé"] * 9, 60, strip_accents=False)
    assert "##é" in accents.vocab and "C" not in accents.vocab
    named = train_tokenizer("bpe", words, 400, special_tokens={"pad": "<null>"})
    assert named.token(named.pad_id) == "<null>" and "<pad>" not in named.vocab
