"""The parser of every verb, options that several verbs share, and types of argparse values."""

import argparse
import textwrap
from pathlib import Path

from firth.errors import FirthError

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

        The text files become a vocabulary of 8,000 pieces and a store that `firth train` reads.
    """,
    "train": """
        firth train --config bert.py:mini --workdir runs/mini --config.data.store=store/
        firth train --config bert.py:mini --workdir runs/lr --config.data.store=store/ \\
            --config.schedule.lr=5e-4 --config.batch_size=64 --config.steps=20000
        firth train --config finetune.py:task=custom,init=runs/mini --workdir runs/reviews \\
            --config.data.train=train.csv --config.data.dev=dev.csv \\
            --config.data.text=text --config.data.label=label

        The first pretrains; stopped and started again, it goes on from its newest checkpoint.
        The last fine-tunes what the first has made. `firth runs` lists all three.
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
    "evaluate": """
        firth evaluate --workdir runs/mini
        firth evaluate --workdir runs/mini --config.eval.batches=1000

        The second measures more of the held-out text. Results go to runs/mini/evaluation.json, too.
    """,
    "predict": """
        firth predict --model runs/reviews --input new.csv --output labelled.csv
    """,
    "represent": """
        firth represent --model runs/mini --input sentences.txt --output vectors.npz --pool mean

        python: numpy.load("vectors.npz")["vectors"] is float32 [texts, hidden size].
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
    """,
}


def example(verb: str) -> str:
    """The end of a verb's help; "" for a verb without an example."""
    text = textwrap.dedent(EXAMPLES.get(verb, "")).strip("\n")
    return f"example:\n{textwrap.indent(text, '  ')}\n" if text else ""


class Parser(argparse.ArgumentParser):
    """The parser of `prog`, "firth VERB", whose help ends with the verb's example."""

    def format_help(self) -> str:
        """The help as argparse writes it, and the example."""
        text = example(self.prog.rpartition(" ")[2])
        return super().format_help() + (f"\n{text}" if text else "")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add `--model`."""
    parser.add_argument(
        "--model",
        required=True,
        help="published or Firth directory, workdir, hf:org/name or minilm",
    )


def add_errors(parser: argparse.ArgumentParser) -> None:
    """Add `--errors`, for bytes that are not UTF-8."""
    parser.add_argument(
        "--errors", choices=("strict", "replace"), default="strict", help="bytes not UTF-8 (strict)"
    )


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Add what says how a classifier reads a file of texts."""
    from firth.data.tasks.rows import FORMATS  # late: they need numpy, which other verbs may not
    from firth.inference.predictions.reading import LONG

    add = parser.add_argument
    add("--text", type=names, default=[], help="column of the text, or of two with a comma between")
    add("--format", choices=FORMATS, help="of the input (by its extension; txt for stdin)")
    add("--batch-size", type=positive, default=32, help="(32)")
    add("--max-length", type=positive, help="tokens of a text (as in training, or all positions)")
    add(
        "--long", choices=LONG, default="truncate", help="cut longer texts, or read them in windows"
    )
    add("--stride", type=positive, help="tokens from window to window of --long=average (half)")
    add_dtype(parser)
    add_errors(parser)


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """Add `--dtype`, for the computation."""
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), help="of the computation (float32)"
    )


def check_output(path: str) -> Path:
    """The path of a file to write; FirthError if it is a folder or its folder does not exist."""
    output = Path(path)
    if not output.parent.is_dir() or output.is_dir():
        raise FirthError(f"--output {path}: expected a file in a directory that exists")
    return output


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def integers(text: str) -> list[int]:
    """An argparse type: integers separated by commas."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list like -4,-3,-2,-1") from None


def names(text: str) -> list[str]:
    """An argparse type: names separated by commas."""
    return [name.strip() for name in text.split(",")]
