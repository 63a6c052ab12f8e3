"""The `firth` command. Each verb has a module of its name, imported when the verb runs."""

import contextlib
import importlib
import logging
import os
import sys

VERBS = {
    "recipes": ("firth.commands.recipes", "list recipes, or the fields of one"),
    "plan": ("firth.commands.plan", "count the cost of a run before it runs"),
    "prepare": ("firth.commands.prepare", "tokenise a corpus into a store"),
    "train": ("firth.commands.train", "pretrain or fine-tune from a recipe"),
    "runs": ("firth.commands.runs", "list runs: what differs, metrics, speed, state"),
    "plot": ("firth.commands.plot", "draw the curves of runs"),
    "evaluate": ("firth.commands.evaluate", "measure a run's checkpoint, or a labelled file"),
    "predict": ("firth.commands.predict", "label texts by a fine-tuned model"),
    "represent": ("firth.commands.represent", "turn texts into vectors"),
    "fill": ("firth.commands.fill", "list the likeliest words for each [MASK]"),
    "generate": ("firth.commands.generate", "continue a prompt with a causal language model"),
    "score": ("firth.commands.score", "compute the log-probability of every token"),
    "convert": ("firth.commands.convert", "published weights to Firth and back"),
}


def usage() -> str:
    """The command's help."""
    lines = ["usage: firth VERB [OPTIONS]", "", "Contextual word representations in JAX.", ""]
    lines += [f"  {verb:<10} {what}" for verb, (_, what) in VERBS.items()]
    return "\n".join([*lines, "", "`firth VERB --help` lists the options of a verb."])


def run(verb: str, argv: list[str]) -> int:
    """Run one verb. Bad input prints one line on stderr, without a traceback, and returns 2."""
    logging.basicConfig(format="firth: %(message)s", level=logging.WARNING)
    logging.getLogger("firth").setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax logs every file it looks for
    from firth.distributed.libtpu import leave_libtpu_alone
    from firth.errors import FirthError

    leave_libtpu_alone()
    try:
        return importlib.import_module(VERBS[verb][0]).main(argv) or 0
    except FirthError as error:
        print(f"firth {verb}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        print(f"firth {verb}: interrupted", file=sys.stderr)
        return 130


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console command."""
    ends_process = argv is None
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"] and len(argv) > 1:  # firth help train
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        from importlib import metadata

        print(f"firth {metadata.version('firth')}")
        return 0
    if argv[0] not in VERBS:
        from firth.recipe import suggest

        print(f"firth: error: no verb {argv[0]!r}{suggest(argv[0], VERBS)}", file=sys.stderr)
        return 2
    status = run(argv[0], argv[1:])
    if ends_process and status == 130:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)  # at once: Python would wait for threads, such as one that imports
    return status


if __name__ == "__main__":
    sys.exit(main())
