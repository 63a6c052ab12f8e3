"""`firth convert`: published weights to Firth and back; it detects the direction.

firth convert --from DIR --to DIR [--part generator] [--overwrite]
"""

import sys

from firth.commands.arguments import Parser
from firth.models.model import parameter_count
from firth.weights.config import architecture
from firth.weights.names import published_heads
from firth.weights.read import Saved, read_model
from firth.weights.write import check_directory, write_firth, write_published


def summary(saved: Saved) -> str:
    """One line about a model: class, family, sizes, heads, labels, parameters, tokenizer."""
    spec = saved.spec
    parts = [
        f"{architecture(saved)} ({spec['family']}): {spec['num_layers']} layers x "
        f"{spec['hidden_size']}, {spec['num_heads']} heads, MLP {spec['intermediate_size']}",
        f"{spec['vocab_size']:,} tokens, {spec.get('max_length', 'any number of')} positions",
        f"heads: {', '.join(saved.heads) or 'none'}",
    ]
    if "classifier" in saved.heads:
        kind = "regression" if saved.regression else f"{saved.num_labels} labels"
        parts.append(f"{kind} {', '.join(saved.labels)}" if saved.labels else kind)
    parts.append(f"{parameter_count(saved.params):,} parameters, {' and '.join(saved.dtypes)}")
    parts.append("with tokenizer" if saved.tokenizer_path else "no tokenizer")
    return "; ".join(parts)


def main(argv: list[str]) -> int:
    """`firth convert`."""
    parser = Parser(
        prog="firth convert",
        description="Convert a published (Hugging Face) model to a Firth directory, or a Firth "
        "directory or workdir to the published layout.",
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        help="published or Firth directory, workdir, hf:NAME",
    )
    parser.add_argument("--to", required=True, help="directory to create")
    parser.add_argument("--overwrite", action="store_true", help="replace the model in --to")
    parser.add_argument(
        "--part",
        choices=("model", "generator"),
        default="model",
        help="of a workdir: the model, or the generator trained beside it",
    )
    args = parser.parse_args(argv)
    check_directory(args.to, args.overwrite)
    saved = read_model(args.source, args.part)
    to_firth = saved.layout in ("published", "original")
    named = published_heads(saved.spec)
    lost = [head for head in saved.heads if head not in named]
    write = write_firth if to_firth else write_published
    write(args.to, saved, args.overwrite)
    print(summary(saved), file=sys.stderr)
    if not to_firth and lost:
        print(f"no place in the published layout, left out: {', '.join(lost)}", file=sys.stderr)
    print(f"{args.to}: {'Firth' if to_firth else 'published'} layout")
    return 0
