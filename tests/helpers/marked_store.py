"""A prepared store on disk whose every token tells its document, sentence and place."""

import json
from pathlib import Path

import numpy as np

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_marked_store(folder: Path, documents: int = 24, first: int = 0) -> tuple[Path, np.ndarray]:
    """A store by `firth prepare`, and the document of every token id, -1 for special ones.

    Words are "d<document>s<sentence>w<word>", each in the vocabulary and each once in the text:
    documents `first` to `first + documents - 1` of a vocabulary that has 64 of them.
    """
    from firth.cli import main

    folder.mkdir(parents=True, exist_ok=True)
    sizes = [np.random.default_rng(d).integers(4, 9, 7 + d % 5) for d in range(64)]
    words = [
        [[f"d{d}s{s}w{w}" for w in range(size)] for s, size in enumerate(sizes[d])]
        for d in range(64)
    ]
    vocabulary = SPECIALS + [w for document in words for sentence in document for w in sentence]
    (folder / "tok").mkdir()
    (folder / "tok" / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tok" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    chosen = words[first : first + documents]
    text = "\n\n".join("\n".join(" ".join(sentence) for sentence in d) for d in chosen)
    (folder / "corpus.txt").write_text(text + "\n")
    arguments = f"prepare --input {folder}/corpus.txt --tokenizer {folder}/tok --sentences line"
    assert main([*arguments.split(), "--output", str(folder / "store")]) == 0
    owner = [-1] * len(SPECIALS)
    owner += [d for d, document in enumerate(words) for sentence in document for _ in sentence]
    return folder / "store", np.array(owner)
