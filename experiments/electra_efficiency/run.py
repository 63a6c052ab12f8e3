"""Which pretraining objective learns most from equal compute? (Clark et al. 2020, table 5)

    python experiments/electra_efficiency/run.py --store store/ --glue glue/ --workdir runs/five

One body, one corpus, five objectives: BERT's masked LM, Replace MLM, ELECTRA 15 %, All-tokens MLM
and ELECTRA. Then each encoder is fine-tuned on SST-2, CoLA and RTE over several seeds. Writes
results.jsonl, results.md and curves.png in the workdir; kill it at any time and start it again.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compared import Comparison, parser, shared_settings

VARIANTS = ("mlm", "replace_mlm", "electra_15", "all_tokens", "electra")


def main():
    options = parser(__doc__.split("\n")[0])
    options.add_argument("--width", type=float, default=0.5, help="of the generator")
    args = options.parse_args()
    runs = {
        variant: (
            f"electra.py:{args.size},length={args.length},variant={variant},sharing=embeddings",
            shared_settings(args) | ({} if variant == "mlm" else {"objective.width": args.width}),
        )
        for variant in VARIANTS
    }
    long, short = dict(sst2=1.0, cola=5.0, rte=5.0), dict(sst2=0.25, cola=2.0, rte=3.0)
    finetune = {"schedule.lr": 3e-4, "optimizer.layer_decay": 0.8}
    Comparison(runs, args, short if args.short else long, finetune).run()


if __name__ == "__main__":
    main()
