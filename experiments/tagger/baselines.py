"""What tagging reaches without a model: each word's most frequent tag in train.

    python experiments/tagger/baselines.py ../shared/data

Writes results.jsonl beside this file.
"""

import json
import sys
from pathlib import Path

from firth.data.tagging.load import load_tagging
from firth.data.tagging.metrics import baselines

CONLL = {"train": "eng.train.gz", "dev": "eng.testa.gz", "test": "eng.testb.gz"}
EWT = {split: f"en_ewt-ud-{split}.conllu.gz" for split in ("train", "dev", "test")}
TASKS = (
    ("CoNLL-2003 entities", "conll2003", CONLL, "3"),
    ("English EWT parts of speech", "ud_english_ewt", EWT, "upos"),
)


def main():
    data, lines = Path(sys.argv[1]), []
    for name, folder, files, tag in TASKS:
        task, splits = load_tagging(files, tag=tag, directory=str(data / folder))
        for split, found in baselines(task, splits).items():
            lines.append({"task": name, "split": split, "model": "baseline", **found.metrics})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    Path(__file__).with_name("results.jsonl").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
