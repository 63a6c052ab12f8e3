"""A played Google Cloud: gcloud, the clock and the workers' programs are stubs on PATH.

The workers are folders of this machine, and what is sent to them through `gcloud ... ssh` is run,
so that worker.sh itself is tested.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = {
    "gcloud": f'exec {shlex.join([sys.executable, "-SE", str(HERE / "play_gcloud.py")])} "$@"',
    # Time passes only while somebody sleeps.
    "sleep": r"""echo "$1" >>"$STUB/sleeps"; read -r now <"$STUB/clock"
        echo $((now + $1)) >"$STUB/clock.new"; mv "$STUB/clock.new" "$STUB/clock" """,
    "date": r"""case "$*" in +%s) cat "$STUB/clock" ;; *) command -p date "$@" ;; esac""",
    "uname": r"""echo "t1v-n-$VM-w-$WORKER" """,
    "python3": r"""[ "$VM-$WORKER" != "$(cat "$STUB/no-python" 2>/dev/null)" ] || exit 1
        echo "$*" >>"$HOME/python3"; for last; do :; done
        [ "$3" != venv ] || mkdir -p "$last/bin" """,
    # Its exit status is word WORKER of line START of a file; `hang` goes on until SIGTERM.
    "firth": r"""start=$(($(cat "$STUB/starts-$WORKER" 2>/dev/null || echo 0) + 1))
        echo $start >"$STUB/starts-$WORKER"; echo "start $start on worker $WORKER: $*"
        set -- $(sed -n "${start}p;\$p" "$STUB/exits" | head -n 1)
        [ $# -le "$WORKER" ] || shift "$WORKER"
        [ "$1" = hang ] || exit "$1"
        trap 'kill $!; exit 143' TERM; command -p sleep 60 & wait""",
}
QUOTA = (
    "ERROR: (gcloud.compute.tpus.queued-resources.create) RESOURCE_EXHAUSTED: Quota limit "
    "'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone z."
)
QUOTA_DENIED = "ERROR: 403 PERMISSION_DENIED: Insufficient project quota to satisfy request"
REFUSED = (
    "ERROR: (gcloud.compute.tpus.queued-resources.create) PERMISSION_DENIED: Permission "
    "'tpu.nodes.create' denied on 'projects/p/locations/z'"
)


class Cloud:
    """One played Google Cloud under a folder; `scenario` says what goes wrong in it, a line a time.

    create: what creating says, nothing for success. states_1: what describing the queued resource
    says while VM 1 is there. silent: the workers that do not answer an ssh. broken_1: those of VM 1
    that never do. node: what describing the node says. exits: for each start, the exit status on
    each worker. no_python: VM-WORKER where nothing can be installed. The last line or word holds
    for ever.
    """

    def __init__(self, checkout: Path, folder: Path, **scenario: str):
        self.checkout, self.folder, self.stub = checkout, folder, folder / "stub"
        (self.stub / "bin").mkdir(parents=True)
        for name, text in PROGRAMS.items():
            self.add_program(name, text)
        for name, text in {"clock": "1000000", "workers": "2", "exits": "0", **scenario}.items():
            (self.stub / name.replace("_", "-")).write_text(text + "\n")
        self.environment = os.environ | {
            "PATH": f"{self.stub / 'bin'}:{os.environ['PATH']}",
            "STUB": str(self.stub),
            "HOME": str(folder),
        }

    def add_program(self, name: str, text: str):
        """Put a program of sh on PATH, here and on the workers."""
        program = self.stub / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def sh(self, script: str, *arguments, timeout=300) -> subprocess.CompletedProcess:
        """Run a script of launch/ to its end, in the folder of this cloud."""
        return subprocess.run(
            ["sh", str(self.checkout / "launch" / script), *map(str, arguments)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def calls(self, *words: str) -> list[list[str]]:
        """The calls of gcloud that hold all these words, oldest first."""
        calls = [line.split("\t") for line in self.lines("calls")]
        return [call for call in calls if set(words) <= set(call)]

    def sleeps(self) -> list[int]:
        """Seconds of each sleep."""
        return [int(line) for line in self.lines("sleeps")]

    def starts(self) -> int:
        """How often the run was started on worker 0."""
        return int(*self.lines("starts-0")[:1])

    def rented(self) -> bool:
        return (self.stub / "vm").exists()

    def log(self, vm: int, worker: int) -> str:
        """What was fetched of a worker's log."""
        return (self.folder / f"runs/launch/base/t1v-n-{vm}-w-{worker}.log").read_text()

    def lines(self, name: str) -> list[str]:
        file = self.stub / name
        return file.read_text().splitlines() if file.exists() else []


def make_checkout(folder: Path) -> Path:
    """A git repository with the scripts alone."""
    shutil.copytree(HERE.parents[1] / "launch", folder / "launch")
    me = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for command in ("init -q", "add .", "commit -qm Launch"):
        subprocess.run(["git", *me, *command.split()], cwd=folder, check=True)
    return folder
