"""The parser of every verb, options that several verbs share, and types of argparse values."""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path

from firth.errors import FirthError

STREAM = "-"  # the name of standard input and output

# {verb: the worked example that ends its help}. Read from top to bottom, they are one session.
EXAMPLES = {
    "recipes": """
        firth recipes                       # what there is
        firth recipes bert.py:mini          # every field of one, and what it means
    """,
    "plan": """
        firth plan --config bert.py:mini --chips here
        firth plan --config bert.py:base --config electra.py:base --chips v5e:16 --chart costs.png

        The first measures this machine for a second and says how long the run takes on it.
    """,
    "prepare": """
        firth prepare --input 'corpus/*.txt' --train-tokenizer wordpiece --vocab-size 8000 \\
            --tokenizer tok/ --output store/

        firth prepare --input 'reviews/*.txt' --tokenizer minilm --output reviews-store/

        The text files become a vocabulary of 8,000 pieces and a store that `firth train` reads.
        The second takes the vocabulary of published weights, to adapt them (adapt.py).
    """,
    "train": """
        firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/
        firth train --config bert.py:mini --workdir runs/lr --config.data.store=store/ \\
            --config.schedule.lr=5e-4 --config.batch_size=64 --config.steps=20000
        firth train --config finetune.py:init=runs/mini --workdir runs/labels \\
            --config.data.train=train.csv

        The first pretrains; stopped and started again, it goes on from its newest checkpoint.
        The last fine-tunes what the first has made. `firth runs` lists all three.
    """,
    "sweep": """
        firth sweep --config finetune.py:init=minilm --workdir sweeps/mine --jobs 2 \\
            --config.data.train=train.csv lr=5e-5,3e-5,2e-5 batch=16,32 seeds=5

        Thirty runs, two at once, each in a folder of sweeps/mine; the same command goes on. Then
        their table, and sweeps/mine/sweep.png.
    """,
    "runs": """
        firth runs                          # below runs/
        firth runs runs/ old/ --sort best
        firth runs --csv > runs.csv
    """,
    "plot": """
        firth plot runs/mini                                    # to curves.png
        firth plot runs/mini runs/lr --x hours --smooth 5 --output two.svg
        firth plot runs/mini --metric mlm_loss mlm_accuracy learning_rate
    """,
    "report": """
        firth report runs/labels                                # to runs/labels/report.html
        firth report runs/labels --split test --errors 50 --output errors.html
        firth report experiments/ptb --output ptb.html
    """,
    "evaluate": """
        firth evaluate --workdir runs/mini
        firth evaluate --workdir runs/mini --config.eval.batches=1000
        firth evaluate --model runs/labels --data test.csv
        firth evaluate --models runs/kn5,runs/gpt2 --data test/ --tune valid/ --cache 200
        firth evaluate --models runs/rnn --data test/ --tune valid/ --dynamic 0.1 --neural-cache 500

        The second measures more of the held-out text. Results go to runs/mini/evaluation.json, too.
        The third measures a classifier on a labelled file. The fourth compares language models, and
        the last lets one learn from the text that it reads.
    """,
    "predict": """
        firth predict --model runs/labels --input new.csv --output labelled.csv
        firth predict --model runs/squad --input questions.jsonl --output answers.jsonl --nbest 3
    """,
    "submit": """
        firth submit runs/cola runs/rte runs/mnli --fill --output submission.zip
        firth submit --check submission.zip

        The server wants every task; --fill writes a constant answer for those without a run.
    """,
    "represent": """
        firth represent --model runs/mini --input sentences.txt --output vectors.npz --pool mean

        python: numpy.load("vectors.npz")["vectors"] is float32 [texts, hidden size].
    """,
    "search": """
        firth represent --model minilm --input sentences.txt --output vectors.npz
        firth search --vectors vectors.npz --texts sentences.txt --query "a broken vase"
    """,
    "neighbours": """
        firth train --config word2vec.py:skipgram --workdir runs/sg --config.data.store=store/
        firth neighbours --model runs/sg vase broke --top 5
        firth neighbours --model vectors.vec vase
    """,
    "analogy": """
        firth analogy --model runs/sg man king woman        # man is to king as woman is to ...
        firth analogy --model runs/sg --questions questions-words.txt --most-frequent 30000
    """,
    "fill": """
        firth fill --model runs/mini "The [MASK] broke." "I saw a [MASK] ." --top 5
        firth fill --model runs/mini "The [MASK] broke." --targets vase,silence
    """,
    "generate": """
        firth train --config gpt2.py:mini --workdir runs/gpt2 --config.data.store=store/
        firth generate --model runs/gpt2 --prompt "The vase" --tokens 64 --top-p 0.9 --seed 1
    """,
    "score": """
        firth score --model runs/mini --input sentences.txt --output scores.jsonl

        A line a text: its tokens, the log-probability of each, and their sum.
    """,
    "convert": """
        firth convert --from runs/mini --to published/         # for Hugging Face transformers
        firth convert --from hf:org/name --to firth-model/     # and back
        firth convert --from runs/kn5 --to kn5.arpa            # n-grams, for SRILM and KenLM
        firth convert --from runs/sg --to vectors.bin          # word vectors: .vec, .txt, .bin
        firth convert --from runs/labels --to published/ --license apache-2.0 --push me/labels

        The last also uploads it, with a model card that says how the run went.
    """,
}


def example(verb: str) -> str:
    """The end of a verb's help; "" for a verb without an example."""
    text = textwrap.dedent(EXAMPLES.get(verb, "")).strip("\n")
    return f"example:\n{textwrap.indent(text, '  ')}\n" if text else ""


class Parser(argparse.ArgumentParser):
    """The parser of `prog`, "firth VERB": its help ends with the verb's example.

    An error is one line, with the nearest name for an option that is unknown.

    Options are written in full. Raises FirthError where argparse would print its usage and exit.
    """

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def format_help(self) -> str:
        """The help as argparse writes it, and the verb's example."""
        text = example(self.prog.rpartition(" ")[2])
        return super().format_help() + (f"\n{text}" if text else "")

    def error(self, message: str):
        """Raise FirthError with argparse's words."""
        raise FirthError(f"{message}; see {self.prog} --help")

    def parse_args(self, args=None, namespace=None):
        """As argparse's, but a misspelt option comes before what is missing because of it."""
        check_options(args, self._option_string_actions)
        return self._whole(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(self, args=None, namespace=None):
        """The same, for a verb whose options may stand between its texts."""
        check_options(args, self._option_string_actions)
        return self._whole(*self.parse_known_intermixed_args(args, namespace))

    def parse_with_fields(self, args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """(options, overrides `--config.FIELD=VALUE`); FirthError for anything else."""
        fields = [item for item in args if item.startswith("--config.")]
        for item in fields:
            if "=" not in item:
                raise FirthError(f"{item} lacks a value; write {item}=VALUE")
        return self.parse_args([item for item in args if item not in fields]), fields

    def _whole(self, args, rest):
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        return args


def check_options(args: Sequence[str], known: Collection[str]) -> None:
    """Raise FirthError, with the nearest one, for an option before `--` that is not known."""
    for item in args:
        if item == "--":
            return
        name = item.partition("=")[0]
        if re.match(r"--?[A-Za-z]", name) and " " not in name and name not in known:
            long = [option for option in known if option.startswith("--")]
            long = [option for option in long if option.startswith(name)] or long
            from firth.recipe import suggest  # late: its libraries are slow to import

            raise FirthError(f"there is no option {name}{suggest(name, long)}")


def add_model(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add `--model`, whose help ends with `more`."""
    parser.add_argument(
        "--model",
        required=True,
        help=f"published or Firth directory, workdir, hf:org/name or minilm{more}",
    )


def add_word_model(parser: argparse.ArgumentParser) -> None:
    """Add `--model`, for word vectors."""
    parser.add_argument(
        "--model", required=True, help="the workdir of word vectors, or a .vec, .txt or .bin file"
    )


def add_errors(parser: argparse.ArgumentParser) -> None:
    """Add `--errors`, for bytes that are not UTF-8."""
    parser.add_argument(
        "--errors", choices=("strict", "replace"), default="strict", help="bytes not UTF-8 (strict)"
    )


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Add what says how a classifier reads a file of texts."""
    from firth.data.tagging.files import OF_WORDS
    from firth.data.tasks.rows import FORMATS  # late: they need numpy, which other verbs may not

    add = parser.add_argument
    add("--text", type=names, default=[], help="column of the text, or of two with a comma between")
    add("--choices", type=names, default=[], help="columns of choices, or one of lists (by name)")
    add(
        "--format",
        choices=(*FORMATS, *OF_WORDS),
        help="of the input (by its extension; txt for stdin)",
    )
    add_reading(parser)
    add("--task", help="of a model of several tasks: the one whose head labels")
    add(
        "--threshold",
        type=number,
        help="with several labels a text: it has those of at least this probability (0.5)",
    )
    add("--nbest", type=positive, help="with answers to questions: so many candidates of each")
    add("--null-threshold", type=number, help="no answer where its odds are above (best on dev)")
    add_dtype(parser)
    add_errors(parser)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add what says how texts become rows of a model (`firth.inference.predictions.reading`)."""
    from firth.inference.predictions.reading import LONG  # late, as above

    add = parser.add_argument
    add("--batch-size", type=positive, default=32, help="(32)")
    add("--max-length", type=positive, help="tokens of a text (as in training, or all positions)")
    add(
        "--long", choices=LONG, default="truncate", help="cut longer texts, or read them in windows"
    )
    add("--stride", type=positive, help="tokens from window to window of --long=average (half)")
    add("--packed", action="store_true", help="read several texts in a row, each by itself")


def refuse_candidates(args) -> None:
    """Raise FirthError for an option that only models that answer questions have."""
    for name in ("nbest", "null_threshold"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise FirthError(f"--{option}: only models that answer questions have it (squad.py)")


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add `--dtype`, for the computation."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the computation (float32)"
    )


def say_dtype(encoder) -> None:
    """Say in a line on stderr that `--dtype=bfloat16` is no faster, where that is so."""
    from firth.inference.execution.bfloat16 import not_faster

    if line := not_faster(encoder):
        print(f"firth: {line}", file=sys.stderr)


def check_output(path: str, *inputs: str | None, option: str = "--output") -> Path:
    """The path of a file to write; of a symbolic link its target, so that the link stays.

    Raises FirthError for a folder, for a folder that is missing or read-only, for a device or a
    pipe (a file would replace it), and for one of the `inputs`, which would be lost.
    """
    named, output = Path(path), Path(os.path.realpath(path))
    stream = re.match(r"/dev/(std|fd/)|/proc/", str(path)) or (
        named.exists() and not named.is_file() and not named.is_dir()
    )
    if path == STREAM or stream:
        raise FirthError(f"{option} {path} is a stream or a device; expected the name of a file")
    if not str(path) or output.is_dir() or not output.parent.is_dir():
        raise FirthError(f"{option} {path}: expected a file in a directory that exists")
    for name in inputs:
        if name and name != STREAM and os.path.realpath(name) == str(output):
            raise FirthError(
                f"{option} {path} is also the input, which it would replace; name another file"
            )
    for place in (output.parent, output):
        if place.exists() and not os.access(place, os.W_OK):
            raise FirthError(f"{option} {path} cannot be written: {place} is read-only")
    return output if named.is_symlink() else named


def new_output(args, *inputs: str) -> Path | None:
    """The path of the file that `args.output` names, None for standard output.

    Raises FirthError as `check_output` does, and for a file that is there, without --overwrite.
    """
    if args.output == STREAM:
        return None
    output = check_output(args.output, *inputs)
    if output.exists() and not args.overwrite:
        raise FirthError(f"{output} is there already; give --overwrite to replace it")
    return output


def ascii_only() -> bool:
    """Whether standard output cannot show every character, so that JSON needs escapes."""
    return not (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def whole(text: str) -> int:
    """An argparse type: an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """An argparse type: a finite number."""
    try:
        value = float(text)
        if value - value == 0:  # neither infinite nor NaN
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a number")


def integers(text: str) -> list[int]:
    """An argparse type: integers separated by commas."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like -4,-3,-2,-1") from None


def numbers(text: str) -> tuple[float, ...]:
    """An argparse type: numbers separated by commas."""
    try:
        return tuple(float(item) for item in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like 0,1.5,0") from None


def names(text: str) -> list[str]:
    """An argparse type: names separated by commas."""
    return [name.strip() for name in text.split(",")]
