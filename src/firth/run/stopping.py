"""How a run is told to end: by SIGTERM, or by Ctrl-C (SIGINT).

Both let the run save after the step under way, and end it with status 143 or 130. A Ctrl-C before
this process has done a step has nothing to save, and a second Ctrl-C does not wait: each ends the
process at once, even while the main thread is inside the compiler or the device, where Python
handles no signal. An interrupted save is as if it had not begun.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

TERMINATED = 128 + signal.SIGTERM  # exit status of a run that saved and stopped on SIGTERM
INTERRUPTED = 128 + signal.SIGINT  # and on Ctrl-C
SAVES = (
    "\nCtrl-C: saves after this step, or its evaluation, and ends; once more ends at once, without "
    "the steps since the last save\n"
)
GRACE = 2.0  # seconds for Python to end by itself, before the process ends without it


class Stop(threading.Event):
    """Set when the run should save and end.

    status: the exit status then. savable: whether this process has done a step, so that there is
    something to save; saved: whether the last step is saved, and only a measurement is left. The
    loop sets both.
    """

    def __init__(self):
        super().__init__()
        self.status, self.savable, self.saved = TERMINATED, False, False

    def __str__(self):
        return "Ctrl-C" if self.status == INTERRUPTED else "SIGTERM"


@contextlib.contextmanager
def catch_interrupts() -> Iterator[Stop]:
    """A block in which Ctrl-C sets a `Stop`, or raises KeyboardInterrupt where it cannot wait.

    Only the main thread can catch signals; in another one, nothing sets the `Stop`.
    """
    stop, over = Stop(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def interrupt(*_):
        if stop.is_set() or not stop.savable:
            raise KeyboardInterrupt
        stop.status = INTERRUPTED
        stop.set()

    # The kernel's own handler writes the signal's number into the pipe, whatever Python is doing.
    read, write = os.pipe()
    os.set_blocking(write, False)
    listener = threading.Thread(target=_listen, args=(read, stop, over), daemon=True)
    handler = signal.signal(signal.SIGINT, interrupt)
    descriptor = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    listener.start()
    try:
        yield stop
    finally:
        over.set()
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGINT, handler)
        os.close(write)
        listener.join()
        os.close(read)


def catch_sigterm(stop: Stop, stack: contextlib.ExitStack) -> None:
    """Let SIGTERM set the `Stop` until the stack unwinds (a handler needs the main thread).

    Where all is saved, it ends the process at once instead: a last measurement may take an hour.
    """

    def terminate(*_):
        if stop.saved:
            sys.stderr.write("stopped by SIGTERM, all is saved; the same command measures again\n")
            raise SystemExit(TERMINATED)
        stop.set()

    if threading.current_thread() is threading.main_thread():
        previous = signal.signal(signal.SIGTERM, terminate)
        stack.callback(signal.signal, signal.SIGTERM, previous)


def _listen(read: int, stop: Stop, over: threading.Event):
    """Answer every Ctrl-C until the pipe is closed; end a process that does not end by itself."""
    presses = 0
    while number := os.read(read, 1):
        if number[0] != signal.SIGINT:
            continue
        presses += 1
        if presses == 1 and stop.savable:
            sys.stderr.write(SAVES)
            sys.stderr.flush()
        elif not over.wait(GRACE):
            cursor = b"\x1b[?25h" if os.isatty(2) else b""  # a progress bar hides it
            os.write(2, cursor + b"\nfirth train: interrupted\n")
            os._exit(INTERRUPTED)
