"""Wrong lines on purpose: does any test see them?

    python tests/mutate.py --list
    python tests/mutate.py --room training --jobs 2 --output mutations.jsonl

A mutation is one line of the sources made wrong in the way that a tired writer would: a sign, a
bound, a key, an option that is ignored. `tests/mutations/<room>[-<part>].toml` lists them, each
with the tests that should see it:

    [[mutation]]
    file = "src/firth/training/optim.py"
    old = "count = state.count + 1"       # occurs once in the file
    new = "count = state.count"
    tests = ["tests/training/test_optim.py::test_adamw_equals_torch"]
    survives = "reason"                   # only where no test can see it, and why

Each is put into a copy of the checkout, never into the checkout itself, and its tests run there.
A mutation is killed if one of them fails, and has survived if all pass; the table at the end counts
both by room. Before, the same tests must pass as they are. The exit status is 1 if one survives
without a reason, or cannot be tried. With `--output`, what was killed is not tried again until its
source or its tests change. One takes seconds and all of them an hour or more, so this is run by
hand; that the list still fits the sources is a test (tests/test_mutations.py).
"""

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from helpers.forked_pytest import TIMEOUT, ForkedPytest
from helpers.mutations import ROOMS, ROOT, ListError, Mutation, check, read_lists
from rich import console, progress

STDERR = console.Console(stderr=True)
COLUMNS = (
    *(progress.TextColumn("{task.description}"), progress.BarColumn()),
    *(progress.MofNCompleteColumn(), progress.TimeElapsedColumn()),
)
PASSED, FAILED, INTERRUPTED = 0, 1, 2  # of pytest's exit statuses
# To import these takes longer than most of the tests.
LIBRARIES = ("jax", "flax.linen", "optax", "orbax.checkpoint", "ml_collections", "sklearn.metrics")
LIBRARIES += ("torch", "transformers.models.bert.modeling_bert", "hypothesis", "tensorboardX")
CRASHED = (-signal.SIGSEGV, -signal.SIGABRT)  # what a wrong line may do; other signals come from us


# ------------------------------------------------------------------------------------ running


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one: "killed", "survived" or "broken"; `seen_by` is a test, or the reason."""

    state: str
    seen_by: str = ""
    seconds: float = 0.0


class Copy:
    """A copy of a checkout, whose sources are imported instead of those that are installed."""

    def __init__(self, folder: Path, root: Path = ROOT):
        self.folder, self.root = folder, root
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=True,
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        if (folder / "configs").is_dir():  # installed as firth.configs
            (folder / "src" / "firth" / "configs").symlink_to(folder / "configs")
        self.environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "FIRTH_DATA": os.environ.get("FIRTH_DATA", str(root.parent / "shared" / "data")),
            "JAX_PLATFORMS": "cpu",
            # Most of a test's time is XLA's, and a program is found by what it computes.
            "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
            "TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK": "true",  # as tests/conftest.py does
        }
        libraries = LIBRARIES if (folder / "src" / "firth").is_dir() else ()
        self.pytest = ForkedPytest(folder, self.environment, libraries)

    def check_imports(self):
        """Raise ListError unless `firth` and its recipes are those of this copy."""
        program = "import firth, firth.configs; print(firth.__file__, *firth.configs.__path__)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
        )
        if not all(name.startswith(str(self.folder)) for name in done.stdout.split() or ["none"]):
            raise ListError(f"the copy's sources are not imported: {done.stdout}{done.stderr}")

    def run(self, tests: tuple[str, ...], timeout: float, *options: str) -> tuple[int, str]:
        """(exit status, output) of pytest on these tests; TIMEOUT where it takes too long."""
        command = ["-p", "no:cacheprovider", "-m", "", *options]
        if importlib.util.find_spec("xdist"):
            command += ["-n", "0"]
        output = self.folder.with_suffix(".output")
        status = self.pytest.run([*command, *tests], output, timeout)
        return status, output.read_text(errors="replace")

    @contextlib.contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """Hold the mutation in the file; afterwards the file is what it was."""
        path = self.folder / mutation.file
        text, times = path.read_text(), path.stat()
        try:
            path.write_text(mutation.applied(text))
            _forget(path)
            yield
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            _forget(path)


def _forget(path: Path):
    """Drop what Python compiled: it takes two files of a size within a second for the same one."""
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def baseline(copy: Copy, nodes: list[str], timeout: float) -> dict[str, str]:
    """{node: "" if it passes as it is, else what is wrong} of nodes of one test file."""
    status, output = copy.run(tuple(nodes), timeout, "-rA", "--maxfail=9")
    if status not in (PASSED, FAILED):
        return dict.fromkeys(nodes, f"cannot be run (status {status}): {_last_line(output)}")
    said = re.findall(r"^(PASSED|FAILED|ERROR) (.+?)(?: - (.*))?$", output, re.MULTILINE)
    found = {}
    for node in nodes:
        own = (node + "[", node + "::")
        of_node = [
            (state, why) for state, name, why in said if name == node or name.startswith(own)
        ]
        failed = [why for state, why in of_node if state != "PASSED"]
        wrong = f"fails on the sound sources: {failed[0]}" if failed else "nothing of it runs here"
        found[node] = "" if of_node and not failed else wrong
    return found


def attempt(copy: Copy, mutation: Mutation, timeout: float) -> Outcome:
    """Run a mutation's tests on it."""
    began = time.monotonic()
    with copy.mutated(mutation):
        status, output = copy.run(mutation.tests, timeout, "-x")
    seconds = round(time.monotonic() - began, 1)
    if status == PASSED:
        return Outcome("survived", mutation.survives, seconds)
    if status in (FAILED, INTERRUPTED):
        seen = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        return Outcome("killed", seen[1] if seen else _last_line(output), seconds)
    if status == TIMEOUT or status in CRASHED:
        why = "it crashed" if status in CRASHED else f"no end within {timeout:g} s"
        return Outcome("killed", why, seconds)
    if re.search(r"^_* ERROR collecting ", output, re.MULTILINE):  # it cannot even be imported
        return Outcome("killed", _last_line(output), seconds)
    return Outcome("broken", f"pytest's status {status}: {_last_line(output)}", seconds)


def _last_line(output: str) -> str:
    return next((line for line in reversed(output.splitlines()) if line.strip()), "no output")


# ------------------------------------------------------------------------------------- results


class Results:
    """What is known: JSON lines, one a mutation, by a digest of all that it hangs on."""

    def __init__(self, path: Path | None, root: Path = ROOT):
        self.path, self.root, self.known = path, root, {}
        self.digests: dict[Mutation, str] = {}
        self.lock = threading.Lock()
        if path and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self.known[entry["digest"]] = Outcome(
                    entry["state"], entry["seen_by"], entry["seconds"]
                )

    def digest(self, mutation: Mutation) -> str:
        """Of the mutation, its source and its test files, as they are when it is first asked."""
        if mutation in self.digests:
            return self.digests[mutation]
        files = sorted({mutation.file, *map(nodes_file, mutation.tests)})
        parts = [repr(dataclasses.replace(mutation, survives="")).encode()]
        parts += [(self.root / name).read_bytes() for name in files]
        self.digests[mutation] = hashlib.sha256(b"\0".join(parts)).hexdigest()
        return self.digests[mutation]

    def find(self, mutation: Mutation) -> Outcome | None:
        """The outcome of one that was killed before."""
        outcome = self.known.get(self.digest(mutation))
        return outcome if outcome and outcome.state == "killed" else None

    def add(self, mutation: Mutation, outcome: Outcome):
        """Keep an outcome."""
        if self.path is None:
            return
        entry = {"digest": self.digest(mutation), **dataclasses.asdict(mutation)}
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps(entry | dataclasses.asdict(outcome)) + "\n")


def run_all(
    mutations: list[Mutation],
    *,
    jobs=1,
    timeout=600.0,
    results: Results,
    root=ROOT,
    tell,
    known_sound=False,
) -> dict[Mutation, Outcome]:
    """The outcome of each; the tests of each are tried on the sound sources first.

    With `known_sound` they are not: the whole suite has just passed.
    `tell(line, done)` hears of every outcome, and how many there are by then.
    """
    for mutation in mutations:
        check(mutation, root)
    outcomes = {one: found for one in mutations if (found := results.find(one))}
    waiting = [one for one in mutations if one not in outcomes]
    if before := len(outcomes):
        tell(f"{before} were killed before", before)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="firth-mutate-"))
        copies = queue.SimpleQueue()
        for number in range(min(jobs, len(waiting))):
            copies.put(copy := Copy(Path(scratch) / str(number), root))
            stack.callback(copy.pytest.close)
        if waiting and (root / "src" / "firth").is_dir():
            copies.put(copy := copies.get())
            copy.check_imports()

        def work(task):
            copy = copies.get()
            try:
                return task(copy)
            finally:
                copies.put(copy)

        def sound(nodes):
            return work(lambda copy: baseline(copy, nodes, 5 * timeout))

        def tried(mutation):
            for node in mutation.tests:
                if unsound[node]:
                    return mutation, Outcome("broken", f"{node}: {unsound[node]}")
            return mutation, work(lambda copy: attempt(copy, mutation, timeout))

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            groups = [] if known_sound else _by_file(waiting)
            unsound = collections.defaultdict(str)
            for number, found in enumerate(pool.map(sound, groups), 1):
                unsound |= found
                wrong = "".join(f"; {node}: {reason}" for node, reason in found.items() if reason)
                group = nodes_file(next(iter(found)))
                tell(f"[{number}/{len(groups)}] without a mutation: {group}{wrong}", before)
            for number, (mutation, outcome) in enumerate(pool.map(tried, waiting), 1):
                outcomes[mutation] = outcome
                results.add(mutation, outcome)
                line = f"{outcome.seconds:.1f} s {told(mutation, outcome)}"
                tell(f"[{number}/{len(waiting)}] {line}", before + number)
    return {one: outcomes[one] for one in mutations}


def nodes_file(node: str) -> str:
    """The test file of a node id."""
    return node.partition("::")[0]


def _by_file(mutations) -> list[list[str]]:
    """The nodes that these name, those of a test file together."""
    groups = {}
    for node in dict.fromkeys(node for one in mutations for node in one.tests):
        groups.setdefault(nodes_file(node), []).append(node)
    return list(groups.values())


def told(mutation: Mutation, outcome: Outcome) -> str:
    """One outcome in words."""
    why = f" ({outcome.seen_by})" if outcome.seen_by else ""
    return f"{outcome.state}: {mutation}{why}"


def table(outcomes: dict[Mutation, Outcome]) -> list[str]:
    """Killed and survived by room, then each that survived or could not be tried."""
    lines = [f"{'room':<12}{'killed':>8}{'survived':>10}{'of these with a reason':>24}"]
    for room in (*ROOMS, "all"):
        found = [(m, o) for m, o in outcomes.items() if room in (m.room, "all")]
        if found:
            survived = [m for m, o in found if o.state == "survived"]
            killed = sum(o.state == "killed" for _, o in found)
            reasons = sum(bool(m.survives) for m in survived)
            lines.append(f"{room:<12}{killed:>8}{len(survived):>10}{reasons:>24}")
    lines += [told(m, o) for m, o in outcomes.items() if o.state != "killed"]
    lines += [
        f"killed, so its reason to survive is out of date: {m}"
        for m, o in outcomes.items()
        if o.state == "killed" and m.survives
    ]
    return lines


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python tests/mutate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--room", action="append", choices=ROOMS, help="only these (all)")
    parser.add_argument("--only", default="", help="only those whose line holds this text")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once (1)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one (600)")
    parser.add_argument("--output", type=Path, help="JSON lines that the next run goes on from")
    parser.add_argument(
        "--sound", action="store_true", help="the tests just passed as they are: do not run them"
    )
    parser.add_argument("--list", action="store_true", help="print them and run nothing")
    args = parser.parse_args(argv)
    try:
        chosen = [m for m in read_lists() if m.room in (args.room or ROOMS) and args.only in str(m)]
        if args.list:
            for one in chosen:
                check(one)
                print(f"{one.room}: {one}  [{' '.join(one.tests)}]")
            return 0
        with progress.Progress(*COLUMNS, disable=not sys.stderr.isatty(), console=STDERR) as bar:
            task = bar.add_task("mutations", total=len(chosen))

            def tell(line: str, done: int = 0):
                bar.update(task, completed=done)
                STDERR.print(line, highlight=False, markup=False, soft_wrap=True)

            found = run_all(
                chosen,
                jobs=args.jobs,
                timeout=args.timeout,
                results=Results(args.output),
                tell=tell,
                known_sound=args.sound,
            )
    except ListError as error:
        print(f"mutate: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(["", *table(found)]))
    bad = [m for m, o in found.items() if o.state == "broken"]
    bad += [m for m, o in found.items() if o.state == "survived" and not m.survives]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
