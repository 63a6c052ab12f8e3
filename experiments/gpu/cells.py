"""Cells: what a stage measures, each in a process of its own, and the file that they go to.

A cell is a dict of plain values. Its result is a line of results.jsonl, written as soon as it is
known: the cell, with what was measured, or with the reason why it was not. `skipped` is final:
another try on this device would end the same. A `failed` cell is measured again by the next
command.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RESULTS = "results.jsonl"
LATE = 5  # seconds between asking a process to end and ending it
UNFINISHED = 75  # exit status of a cell that goes on in the next command
SKIPPED, FAILED = "skipped", "failed"
MEMORY = ("RESOURCE_EXHAUSTED", "OutOfMemoryError", "CUDA out of memory", "std::bad_alloc")
# A cell of no known length starts only if so many seconds are left.
LEAST = {False: 60, True: 1}  # by whether the run is tiny


class OutOfTimeError(Exception):
    """A cell that did not end in the time that was left; the next command does it again."""


def read(out: Path) -> list[dict]:
    """The lines of results.jsonl, without one that a killed process left half written."""
    rows = []
    path = out / RESULTS
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def write(out: Path, row: dict) -> None:
    """Add a line at once; it begins on a line of its own whatever was there."""
    path = out / RESULTS
    text = path.read_text() if path.exists() else ""
    with path.open("a") as file:
        file.write(("\n" if text and not text.endswith("\n") else "") + json.dumps(row) + "\n")


def remaining(cells: list[dict], rows: list[dict]) -> list[dict]:
    """The cells that no row is of but failed ones, in their order."""
    rows = [row for row in rows if FAILED not in row]
    return [cell for cell in cells if not any(cell.items() <= row.items() for row in rows)]


def run(
    stage: str, cells: list[dict], out: Path, deadline: float, tiny: bool, options=()
) -> tuple[int, int]:
    """Measure cells in turn until the deadline (of time.monotonic); (how many are left, failed).

    `options` are further arguments of run.py that cells need.
    """
    left, failed = remaining(cells, read(out)), 0
    done = len(cells) - len(left)
    for cell in left:
        if deadline - time.monotonic() < LEAST[tiny]:
            break
        try:
            left_s = deadline - time.monotonic()
            found = in_process(stage, cell, out, left_s, tiny, options)
        except OutOfTimeError:
            break
        write(out, {"stage": stage, **cell, **found})
        done, failed = done + (FAILED not in found), failed + (FAILED in found)
        print(f"{stage}: {json.dumps({**cell, **found})}", flush=True)
    late = len(cells) - done - failed
    text = f"{stage}: {done} of {len(cells)} done"
    text += f", {failed} failed (see {out / stage}.log)" if failed else ""
    text += f", {late} left when time was over; the same command goes on from here" if late else ""
    print(text, flush=True)
    return late, failed


def in_process(stage: str, cell: dict, out: Path, seconds: float, tiny: bool, options=()) -> dict:
    """What run.py --cell prints of a cell, or why there is nothing; raises OutOfTimeError."""
    command = [sys.executable, str(Path(__file__).parent / "run.py"), "--out", str(out)]
    command += ["--stage", stage, "--cell", json.dumps(cell), "--seconds", f"{seconds:.0f}"]
    command += ["--tiny"] if tiny else []
    command += options
    with (out / f"{stage}.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        start = log.tell()
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            end(process)
            raise OutOfTimeError from None
        except BaseException:  # Ctrl-C: leave nothing behind that holds the device
            end(process)
            raise
    if process.returncode == UNFINISHED:
        raise OutOfTimeError
    if process.returncode == 0:
        return json.loads(printed.splitlines()[-1])
    with (out / f"{stage}.log").open("rb") as log:
        log.seek(start)
        return reason(log.read().decode(errors="replace"), process.returncode)


def end(process) -> None:
    """End a process and those that it started: ask, then insist."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(LATE)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def reason(log: str, status: int) -> dict:
    """{"skipped" or "failed": one line} for a process that did not end well, from what it wrote."""
    if any(word in log for word in MEMORY) or status == -signal.SIGKILL:
        return {SKIPPED: "too little memory"}
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return {FAILED: lines[-1][:300] if lines else f"the process ended with {status}"}
