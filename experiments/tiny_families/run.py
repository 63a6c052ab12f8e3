"""Four ways to pretrain one small body at equal compute: BERT, XLNet, Transformer-XL, GPT.

    python experiments/tiny_families/run.py --store store/ --glue glue/ --workdir runs/four

Then each is fine-tuned on SST-2 and RTE over several seeds, and GPT goes on from a prompt. Writes
results.jsonl, results.md, curves.png and sample.jsonl in the workdir; kill it and start it again.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from commands import call
from compared import Comparison, parser, shared_settings


def main():
    args = parser(__doc__.split("\n")[0]).parse_args()
    documents = {"data.ends": "document", "data.shuffle": True, "data.heldout": 0.01}
    changes = {"bert": {}, "xlnet": {}, "gpt": {}, "transformer_xl": documents}
    runs = {
        family: (
            f"{family}.py:{args.size},length={args.length}",
            shared_settings(args) | changes[family],
        )
        for family in changes
    }
    epochs = dict(sst2=0.25, rte=3.0) if args.short else dict(sst2=1.0, rte=5.0)
    Comparison(runs, args, epochs).run()
    if not args.only:
        sample = ["generate", f"--model={args.workdir / 'gpt'}", "--prompt=The river"]
        call(*sample, "--tokens=100", "--top-k=40", f"--output={args.workdir / 'sample.jsonl'}")


if __name__ == "__main__":
    main()
