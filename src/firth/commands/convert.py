"""`firth convert`: published weights to Firth and back; it detects the direction.

firth convert --from DIR --to DIR [--part generator] [--overwrite]
firth convert --from WORKDIR --to DIR --license apache-2.0 --push ORG/NAME [--private]
firth convert --from DIR --to FILE.arpa
firth convert --from FILE.arpa --to DIR
firth convert --from DIR --to FILE.vec (.txt, .bin), and back
"""

import sys
from pathlib import Path

from firth.commands.arguments import Parser
from firth.errors import FirthError
from firth.models.model import parameter_count
from firth.models.ngram.files import is_ngram
from firth.models.word_vectors.files import is_word_vectors
from firth.models.word_vectors.formats import is_file_name
from firth.weights.arpa import check_file, from_arpa, is_arpa, to_arpa
from firth.weights.card import amended, model_card
from firth.weights.config import architecture
from firth.weights.elmo.exchange import HEAD
from firth.weights.hub import check_push, push
from firth.weights.names import published_heads
from firth.weights.read import Saved, read_model
from firth.weights.transfer.task import of_task
from firth.weights.word_vectors.exchange import from_file, to_file
from firth.weights.write import check_directory, write_firth, write_published


def summary(saved: Saved) -> str:
    """One line about a model: class, family, sizes, heads, labels, parameters, tokenizer."""
    spec = saved.spec
    if spec["family"] == "elmo":
        return (
            f"ELMo: {spec['num_layers']} layers x {spec['cell_size']} cells each way, width "
            f"{spec['hidden_size']}; heads: {', '.join(saved.heads) or 'none'}; "
            f"{parameter_count(saved.params):,} parameters"
        )
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


def card_for(saved: Saved, **named: str) -> str | None:
    """The model card: its own with what the user names (None: unchanged), else a new one."""
    own = saved.source / "README.md"
    if not own.is_file():
        return model_card(saved, **named)
    return amended(own.read_text(encoding="utf-8"), **named) if any(named.values()) else None


def main(argv: list[str]) -> int:
    """`firth convert`."""
    parser = Parser(
        prog="firth convert",
        description="Convert a published (Hugging Face) model to a Firth directory, or a Firth "
        "directory or workdir to the published layout; an n-gram model to an ARPA file, word "
        "vectors to a file of word2vec (.vec, .txt, .bin) or GloVe (.glove.txt), or back.",
    )
    parser.add_argument(
        "--from",
        dest="source",
        required=True,
        help="published or Firth directory, workdir, hf:NAME, FILE.arpa, FILE.vec",
    )
    parser.add_argument(
        "--to", required=True, help="directory to create, or FILE.arpa, FILE.vec, FILE.bin"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the model in --to")
    parser.add_argument(
        "--part",
        choices=("model", "generator"),
        default="model",
        help="of a workdir: the model, or the generator trained beside it",
    )
    parser.add_argument("--task", help="of a model of several tasks: the one to write")
    parser.add_argument("--license", help="for the model card: apache-2.0, mit, cc-by-4.0, ...")
    parser.add_argument(
        "--base-model",
        metavar="ORG/NAME",
        help="for the model card: the published weights that this model comes from (those that the "
        "run started from, if they have a name on the hub)",
    )
    parser.add_argument(
        "--push", metavar="ORG/NAME", help="upload what is written to the Hugging Face hub"
    )
    parser.add_argument("--private", action="store_true", help="make a private model of --push")
    args = parser.parse_args(argv)
    if args.private and not args.push:
        raise FirthError("--private is for --push ORG/NAME")
    if is_file_name(args.source) or is_file_name(args.to):
        return _convert_words(args)
    if is_arpa(args.source) or is_arpa(args.to):
        return _convert_ngrams(args)
    check_directory(args.to, args.overwrite)
    if args.push:
        check_push(args.push)
    saved = of_task(read_model(args.source, args.part), args.task)
    to_firth = saved.layout in ("published", "original")
    given = [name for name in ("license", "base_model", "push") if getattr(args, name)]
    if to_firth and given:
        raise FirthError(
            f"--{given[0].replace('_', '-')} is for the published layout, and {args.source} is "
            f"{saved.layout}, so it becomes a Firth directory"
        )
    if saved.tasks and not to_firth:
        raise FirthError(
            f"{args.source} has heads of several tasks, {', '.join(saved.tasks)}; choose one: "
            "--task NAME"
        )
    named = (HEAD,) if saved.spec["family"] == "elmo" else published_heads(saved.spec)
    lost = [head for head in saved.heads if head not in named]
    if to_firth:
        write_firth(args.to, saved, args.overwrite)
    else:
        given = dict(license=args.license or "", base_model=args.base_model or "")
        card = None if saved.spec["family"] == "elmo" else card_for(saved, **given)
        write_published(args.to, saved, args.overwrite, card)
    print(summary(saved), file=sys.stderr)
    if not to_firth and lost:
        print(f"no place in the published layout, left out: {', '.join(lost)}", file=sys.stderr)
    print(f"{args.to}: {'Firth' if to_firth else 'published'} layout")
    if args.push:
        print(push(Path(args.to), args.push, private=args.private))
    return 0


def _refuse_flags(args, what: str) -> None:
    given = [name for name in ("license", "base_model", "push", "task") if getattr(args, name)]
    if given or args.part != "model":
        flag = given[0].replace("_", "-") if given else "part"
        raise FirthError(f"--{flag} is not for {what}")


def _convert_words(args) -> int:
    _refuse_flags(args, "word vectors")
    if is_file_name(args.to):
        if is_file_name(args.source):
            raise FirthError(f"--to {args.to}: a file of word vectors becomes a folder")
        if not is_word_vectors(args.source):
            raise FirthError(
                f"{args.source} holds no word vectors, which alone {Path(args.to).name} can hold"
            )
        check_file(args.to, args.overwrite)
        words = to_file(args.source, args.to)
    else:
        check_directory(args.to, args.overwrite)
        words = from_file(args.source, args.to, args.overwrite)
    print(f"{args.to}: {len(words.ids):,} words of {words.vectors.shape[1]} dimensions")
    return 0


def _convert_ngrams(args) -> int:
    _refuse_flags(args, "n-gram models")
    if is_arpa(args.source) and is_arpa(args.to):
        raise FirthError(f"--to {args.to}: an ARPA file becomes a folder")
    if is_arpa(args.source):
        check_directory(args.to, args.overwrite)
        model = from_arpa(args.source, args.to, args.overwrite)
    else:
        check_file(args.to, args.overwrite)
        if not is_ngram(args.source):
            raise FirthError(
                f"{args.source} holds no n-gram model, which alone an ARPA file can hold"
            )
        model = to_arpa(args.source, args.to)
    counts = ", ".join(f"{len(keys):,}" for keys in model.keys)
    print(f"{args.to}: n-grams of orders 1 to {model.order}: {counts}")
    return 0
