"""The `firth` command. Each verb has a module of its name, imported when the verb runs."""

import _thread
import contextlib
import errno
import importlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable

INTERRUPTED = 130  # exit status, as shells have it: 128 + SIGINT
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

VERBS = {
    "recipes": ("firth.commands.recipes", "list recipes, or the fields of one"),
    "plan": ("firth.commands.plan", "count the cost of a run before it runs"),
    "prepare": ("firth.commands.prepare", "tokenise a corpus into a store"),
    "train": ("firth.commands.train", "pretrain or fine-tune from a recipe"),
    "sweep": ("firth.commands.sweep", "train over a grid of settings and seeds"),
    "runs": ("firth.commands.runs", "list runs: what differs, metrics, speed, state"),
    "plot": ("firth.commands.plot", "draw the curves of runs"),
    "report": ("firth.commands.report", "write a page about a run, its errors, an experiment"),
    "evaluate": ("firth.commands.evaluate", "measure a run's checkpoint, or a labelled file"),
    "predict": ("firth.commands.predict", "label texts by a fine-tuned model"),
    "submit": ("firth.commands.submit", "write or check the zip of predictions for GLUE"),
    "represent": ("firth.commands.represent", "turn texts into vectors"),
    "search": ("firth.commands.search", "find the texts nearest to a query"),
    "neighbours": ("firth.commands.neighbours", "list the words nearest to a word"),
    "analogy": ("firth.commands.analogy", "answer: A is to B as C is to which word?"),
    "fill": ("firth.commands.fill", "list the likeliest words for each [MASK]"),
    "generate": ("firth.commands.generate", "continue a prompt with a causal language model"),
    "score": ("firth.commands.score", "compute the log-probability of every token"),
    "convert": ("firth.commands.convert", "published weights and vectors to Firth and back"),
}
COMPUTES = (
    "train",
    "evaluate",
    "report",
    "predict",
    "submit",
    "represent",
    "fill",
    "generate",
    "score",
)


def usage() -> str:
    """The command's help."""
    lines = ["usage: firth VERB [OPTIONS]", "", "Contextual word representations in JAX.", ""]
    lines += [f"  {verb:<10} {what}" for verb, (_, what) in VERBS.items()]
    return "\n".join([*lines, "", "`firth VERB --help` lists the options of a verb."])


def run(verb: str, argv: list[str]) -> int:
    """Run one verb; returns its exit status."""
    _quiet_others()
    from firth.distributed.libtpu import leave_libtpu_alone

    leave_libtpu_alone()
    return ended(f"firth {verb}", lambda: importlib.import_module(VERBS[verb][0]).main(argv))


def ended(name: str, does: Callable[[], int | None]) -> int:
    """The exit status of a function that does what the command `name` is for.

    Bad input, a full disk and a denied file print one line on stderr, without a traceback, and
    return 2.
    """
    from firth.errors import FirthError

    try:
        try:
            with _heard_everywhere():
                status = does() or 0
        except SystemExit:  # of --help, which has printed
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # a full disk shows only here
        return status
    except FirthError as error:
        message = str(error)
    except BrokenPipeError:
        _abandon_stdout()
        return 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if error.errno is None:  # a library's own error, not one of the file system
            raise
        message = _explain(error)
    print(f"{name}: error: {' '.join(message.split())}", file=sys.stderr)
    _abandon_stdout()
    return 2


@contextlib.contextmanager
def _heard_everywhere():
    """Handle what is raised where Python drops exceptions.

    A Ctrl-C that comes while JAX collects garbage is repeated. A failed save leaves callbacks of
    tensorstore that find its loop closed; the save has reported its error.
    """
    before = sys.unraisablehook

    def hook(dropped):
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Timer(0.01, _thread.interrupt_main).start()
        elif "Event loop is closed" not in str(dropped.exc_value):
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _explain(error: OSError) -> str:
    """What could not be read or written, why, and what to do."""
    where = f"{error.filename}: " if error.filename else ""
    if error.filename is None:
        where = "the output cannot be written: " if error.errno in FULL else ""
    advice = "make room and run the same command again" if error.errno in FULL else ""
    return f"{where}{error.strerror}; {advice or 'choose a place that can be read and written'}"


def _open_streams():
    """Make sure that stdout and stderr are open and show any text, on an ASCII terminal too."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell, as in `firth ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _abandon_stdout():
    """Lose what stdout could not take, so that Python does not try, and fail, again at its end."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _quiet_others():
    """Log Firth's own notes, and of other libraries what concerns the user."""
    logging.basicConfig(format="firth: %(message)s", level=logging.WARNING)
    logging.getLogger("firth").setLevel(logging.INFO)
    # Orbax logs every file it looks for, and each error before it raises it.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", message="Sharding info not provided")  # of every restore


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console command."""
    ends_process = argv is None
    _open_streams()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"] and len(argv) > 1:  # firth help train
        argv = [argv[1], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        return ended("firth", lambda: print(usage()) or (0 if argv else 2))
    if argv[0] in ("-V", "--version"):
        from importlib import metadata

        print(f"firth {metadata.version('firth')}")
        return 0
    if argv[0] not in VERBS:
        from firth.recipe import suggest

        print(f"firth: error: no verb {argv[0]!r}{suggest(argv[0], VERBS)}", file=sys.stderr)
        return 2
    if ends_process and argv[0] in COMPUTES:
        from firth.distributed.allocator import keep_freed_memory

        keep_freed_memory()
    status = run(argv[0], argv[1:])
    if ends_process and status == 130:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)  # at once: Python would wait for threads, such as one that imports
    return status


if __name__ == "__main__":
    sys.exit(main())
