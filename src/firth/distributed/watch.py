"""Detection of a dead process in a job, within a bounded time and with the same message for all.

A collective may wait for ever after a peer has died, so a process cannot rely on the device to
return. So a thread of process 0 watches the others, and a thread of each other process watches
process 0. Each pair has a connection, on which both sides send a heartbeat every second:

- The kernel closes the connection however a process dies, so a death is seen at once.
- A host without power, a cut network or a stopped process is silent for `patience` seconds.
- A heartbeat reports the step. If no process takes a step for `stall` seconds, the one furthest
  behind is named.
- Collectives that a death cuts short may fail in C++, where gloo aborts the process. An abort waits
  until the death is known.

Process 0 decides on the verdict. Every process prints it and ends with its status. Errors take the
same way, so bad input on one host becomes one line and status 2 on every host.
"""

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from typing import TextIO

import jax

from firth.distributed import job
from firth.distributed.job import DIED
from firth.errors import FirthError

BEAT = 1.0  # seconds
LINGER = (
    5.0  # seconds that process 0 waits for the others to hear the verdict: it hosts their store
)

_watch: "Watch | None" = None


@contextlib.contextmanager
def together(*alike: type[BaseException], patience: float = 30.0, stall: float = 3600.0):
    """A block in which the processes of a job watch each other (see the top of this file).

    An error in one process ends all processes at once, and the others may not close their
    resources. So this must be the innermost context manager. SystemExit, and the exceptions in
    `alike`, occur on all processes at the same step, so they just propagate. Only the outermost
    block watches; it returns when all processes have reached its end. Raises FirthError if the
    processes cannot connect.
    """
    global _watch
    outermost = _watch is None and job.count() > 1
    if outermost:
        _watch = Watch(patience, stall)
    elif _watch is not None:  # a new loop counts its steps from the start
        _watch.lap, _watch.planned = _watch.lap + 1, 0
    try:
        yield
    except (SystemExit, *alike):
        raise
    except BaseException as error:
        if _watch is not None:
            _watch.fail(error)
        raise
    finally:  # `fail` ends the process, so it does not come here
        if outermost:
            _watch.leave()
            _watch = None


def agreed(step: int, terminated: threading.Event, overdue: bool) -> str:
    """What all do after this step: "stop" (SIGTERM to any), "save" (process 0's clock), or "".

    Call it after every step, with the metrics of the step before on the host. It takes effect two
    steps after process 0 asks for it, and needs no collective. No process is two steps ahead of
    process 0, since the metrics of a step are sums over all processes. So all read the request in
    time.
    """
    wish = "stop" if terminated.is_set() else "save" if overdue else ""
    return wish if _watch is None else _watch.agreed(step, terminated, wish)


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int)


def _on_abort(handler: _Handler | None) -> None:
    """Call `handler` in the thread that aborts; None: end the process, as is the default.

    A handler of Python's own `signal` would not do: it runs in the main thread, after the abort.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGABRT, handler and ctypes.cast(handler, ctypes.c_void_p))


class Watch:
    """The thread of one process that watches the others; see the top of this file."""

    def __init__(self, patience: float, stall: float):
        self.patience, self.stall = patience, stall
        self.number, self.count = job.number(), job.count()
        self.names = job.all_gather(socket.gethostname())
        self.step = 0
        self.terminated = threading.Event()  # the loop's own, once it runs
        self.lap, self.planned = 0, 0  # process 0 makes no new request before step `planned`
        self.ended: dict | None = None  # the verdict that this process asks for
        self.over = False
        self.news = threading.Event()  # set for an event that cannot wait for the next beat
        self.ending = threading.Lock()
        self.lost: set[int] = set()  # processes whose connection closed
        self.beats: dict[int, dict] = {}  # the last beat of each process
        self.moved = time.monotonic()
        try:
            self.links = self._connect()
        except OSError as error:
            where = f"{job.coordinator()} (process 0, {self.names[0]})"
            raise FirthError(f"no connection with {where}: {error}; let all ports pass") from None
        self.heard = dict.fromkeys(self.links, time.monotonic())
        for number, (_, lines) in self.links.items():
            threading.Thread(target=self._listen, args=(number, lines), daemon=True).start()
        threading.Thread(target=self._run, name="firth watch", daemon=True).start()
        self.on_abort = _Handler(self._abort_later)
        _on_abort(self.on_abort)

    # --------------------------------------------------------- called by the loop's thread

    def agreed(self, step: int, terminated: threading.Event, wish: str) -> str:
        """The function `agreed`, for a job of several processes."""
        self.step, self.terminated = step, terminated
        folder = f"firth/agreed/{self.lap}"
        if self.number == 0 and wish and step >= self.planned:
            job.client().key_value_set(f"{folder}/{step + 2}/wish", wish)
            self.planned = step + 3
        return "".join(w for _, w in job.client().key_value_dir_get(f"{folder}/{step}/"))

    def fail(self, error: BaseException) -> None:
        """Report why this process ends, then end with the verdict that comes back."""
        if isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(self._until_named())  # likely caused by a death
        if isinstance(error, FirthError):
            ended = {"code": 2, "why": f": {error}"}
        else:
            if not isinstance(error, KeyboardInterrupt):
                traceback.print_exception(error)
            code = 130 if isinstance(error, KeyboardInterrupt) else 1
            ended = {"code": code, "why": f" failed ({type(error).__name__}: {error})"}
        self.ended = ended
        self.news.set()
        time.sleep(2 * LINGER)
        self._end(self._of(self.number, **ended))  # process 0 did not answer

    def leave(self) -> None:
        """Return when all processes have called it; a connection closed later is no death."""
        job.all_gather("leaves")
        self.over = True
        job.all_gather("has left")  # so that no process closes a connection that is still watched
        _on_abort(None)
        self.news.set()
        for link, _ in self.links.values():
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    # ------------------------------------------------------------ called by other threads

    def _until_named(self) -> float:
        """The seconds after which the watch has named a process that died or is silent."""
        return self.patience + 3 * BEAT

    def _abort_later(self, number: int):
        time.sleep(self._until_named())
        _on_abort(None)
        os.kill(os.getpid(), number)

    def _connect(self) -> dict[int, tuple[socket.socket, TextIO]]:
        """{process: (connection, lines received)}, between process 0 and every other process."""
        if self.number:
            _, port, word = json.loads(job.all_gather()[0])
            link = socket.create_connection((job.coordinator(), port), timeout=self.patience)
            link.settimeout(None)
            link.sendall(f"{word} {self.number}\n".encode())
            return {0: (link, link.makefile())}
        server = socket.create_server(("", 0), backlog=self.count)
        word = secrets.token_hex(16)  # so that no stranger can pose as a process
        job.all_gather(json.dumps(["watch", server.getsockname()[1], word]))
        server.settimeout(self.patience)
        links = {}
        while len(links) < self.count - 1:
            link, _ = server.accept()
            link.settimeout(self.patience)
            lines = link.makefile()
            received, _, number = lines.readline().partition(" ")
            link.settimeout(None)
            if received == word:
                links[int(number)] = link, lines
        server.close()
        return links

    def _listen(self, number: int, lines: TextIO):
        with contextlib.suppress(OSError):
            for line in lines:
                beat, old = json.loads(line), self.beats.get(number, {})
                self.heard[number] = time.monotonic()
                if beat["step"] != old.get("step"):
                    self.moved = time.monotonic()
                self.beats[number] = beat
                if beat["stop"] or beat["ended"]:
                    self.news.set()
        self.lost.add(number)
        if self.number and not self.over:  # JAX aborts in a moment, since its store is gone too
            self._end(self._dead(number))
        self.news.set()

    def _run(self):
        while True:
            self.news.wait(BEAT)
            self.news.clear()
            if self.over:
                return
            asked = self.ended if self.number else None  # process 0 sends verdicts, never requests
            self._send({"step": self.step, "stop": self.terminated.is_set(), "ended": asked})
            verdict = self._verdict()
            if verdict and not self.over:
                self._end(verdict)

    def _send(self, beat: dict):
        line = json.dumps(beat).encode() + b"\n"
        for link, _ in self.links.values():
            with contextlib.suppress(OSError):  # its listener will mark it as lost
                link.sendall(line)

    def _verdict(self) -> dict | None:
        """The reason why all must end, or None while all is well."""
        beats = dict(self.beats)
        if self.number:
            if beats.get(0, {}).get("ended"):
                return beats[0]["ended"]
            return self._dead(0)
        if any(beat["stop"] for beat in beats.values()):
            self.terminated.set()
        beats[0] = {"step": self.step, "ended": self.ended}
        for number, beat in sorted(beats.items()):
            if beat["ended"]:
                return self._of(number, **beat["ended"])
        for number in self.links:
            if verdict := self._dead(number):
                return verdict
        behind = min(beats, key=lambda number: beats[number]["step"])
        if self.step and time.monotonic() - self.moved > self.stall:
            return self._of(behind, DIED, f" hangs: no process took a step for {self.stall:g} s")
        return None

    def _dead(self, number: int) -> dict | None:
        if number in self.lost:
            return self._of(number, DIED, " died")
        if time.monotonic() - self.heard[number] > self.patience:
            return self._of(number, DIED, f" died or hangs (silent for {self.patience:g} s)")
        return None

    def _of(self, number: int, code: int, why: str) -> dict:
        """The verdict that process `number` is the cause."""
        step = self.step if number == self.number else self.beats.get(number, {}).get("step", 0)
        when = "" if code == 2 else f" after step {step}" if step else " before its first step"
        return {"code": code, "why": f"process {number} ({self.names[number]}){why}{when}"}

    def _end(self, verdict: dict):
        """Print the reason, tell the others, and end without waiting for the device."""
        self.ending.acquire()  # never released: only one thread may end the process
        text = " ".join(verdict["why"].split())
        print(f"firth train: error: {text}", file=sys.stderr, flush=True)
        if self.number == 0:
            self._send({"step": self.step, "stop": False, "ended": verdict})
            last = time.monotonic() + LINGER
            while len(self.lost) < len(self.links) and time.monotonic() < last:
                time.sleep(0.05)
        sys.stdout.flush()
        os._exit(verdict["code"])
