"""Which pretraining objective learns most from equal compute? (Clark et al. 2020, table 5)

    python experiments/electra_efficiency/run.py --store store/ --glue glue/ --workdir runs/five

One body, one corpus, five objectives: BERT's masked LM, Replace MLM, ELECTRA 15 %, All-tokens MLM
and ELECTRA. Then each encoder is fine-tuned on SST-2, CoLA and RTE over several seeds. Writes
results.jsonl, results.md and curves.png in the workdir; kill it at any time and start it again.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compared import Comparison, shared_settings

VARIANTS = ("mlm", "replace_mlm", "electra_15", "all_tokens", "electra")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--store", required=True)
    parser.add_argument("--glue", required=True)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--width", type=float, default=0.5, help="of the generator")
    parser.add_argument("--steps", type=int, default=10_000, help="of masked LM; sets the compute")
    parser.add_argument("--seeds", default="0,1,2")
    args = parser.parse_args()
    shared = shared_settings(args.store, args.batch, args.rate)
    runs = {
        variant: (
            f"electra.py:{args.size},length={args.length},variant={variant}",
            shared | ({} if variant == "mlm" else {"objective.width": args.width}),
        )
        for variant in VARIANTS
    }
    finetune = {"schedule.lr": 3e-4, "optimizer.layer_decay": 0.8}
    Comparison(
        runs, args.workdir, args.steps, args.glue, args.seeds, args.length, finetune=finetune
    ).run()


if __name__ == "__main__":
    main()
