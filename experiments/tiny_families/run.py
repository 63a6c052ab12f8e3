"""Four ways to pretrain one small body at equal compute: BERT, XLNet, Transformer-XL, GPT.

    python experiments/tiny_families/run.py --store store/ --glue glue/ --workdir runs/four

Then each is fine-tuned on SST-2 and RTE over several seeds, and GPT goes on from a prompt. Writes
results.jsonl, results.md, curves.png and sample.jsonl in the workdir; kill it and start it again.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compared import Comparison, firth, shared_settings


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--glue", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=10_000, help="of BERT; sets the compute")
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    shared = shared_settings(args.store, args.batch, args.rate)
    documents = {"data.ends": "document", "data.shuffle": True, "data.heldout": 0.01}
    changes = {"bert": {}, "xlnet": {}, "gpt": {}, "transformer_xl": documents}
    runs = {
        family: (f"{family}.py:{args.size},length={args.length}", shared | changes[family])
        for family in changes
    }
    Comparison(
        runs, args.workdir, args.steps, args.glue, args.seeds, args.length, ("sst2", "rte")
    ).run()
    sample = ["generate", f"--model={args.workdir / 'gpt'}", "--prompt=The river"]
    firth(*sample, "--tokens=100", "--top-k=40", f"--output={args.workdir / 'sample.jsonl'}")


if __name__ == "__main__":
    main()
