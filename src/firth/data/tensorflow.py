"""TensorFlow as a servant of JAX: without the accelerator, and without its log lines.

It reads datasets and moves batches here, on the CPU, and is imported only when one of these is
asked for, as that takes a few seconds.
"""

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

# Libraries that write log lines while they are loaded, before TF_CPP_MIN_LOG_LEVEL is looked at.
_TALKATIVE = (
    "python/platform/_pywrap_cpu_feature_guard.so",
    "python/profiler/internal/_pywrap_profiler_plugin.so",
)
_LOG_LINE = re.compile(
    rb"[IWE]\d{4} \d\d:\d\d:\d\d"  # I0000 00:00:1795328316.3 123 port.cc:153] ...
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "  # the same of TensorFlow 2.18
    rb"|WARNING: All log messages before absl::InitializeLog"
)
_importing = threading.Lock()


def has_tensorflow() -> bool:
    """Whether TensorFlow is installed; this imports nothing."""
    return importlib.util.find_spec("tensorflow") is not None


def import_tensorflow():
    """The module `tensorflow`, which sees no accelerator; raises ImportError where it is missing.

    It logs nothing, not even errors, as these reach the caller as exceptions; with
    TF_CPP_MIN_LOG_LEVEL=0 in the environment it logs everything.
    """
    with _importing:
        if "tensorflow" not in sys.modules and has_tensorflow():
            if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # 1 is what JAX has set
                os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
            if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0":
                _load_silently()
        import tensorflow as tf

        # The accelerator belongs to JAX: without this TensorFlow would take all of its memory.
        with contextlib.suppress(RuntimeError):  # the caller's TensorFlow runs, as it was set
            for kind in ("GPU", "TPU"):
                tf.config.set_visible_devices([], kind)
        return tf


def _load_silently() -> None:
    """Load the talkative libraries, so that the import, which finds them loaded, says nothing."""
    folder = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0])
    with _without_log_lines():
        for name in _TALKATIVE:
            with contextlib.suppress(OSError):  # other releases may have others
                ctypes.CDLL(str(folder / name))


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Hold back what is written to file descriptor 2; the log lines in it go, all else follows."""
    with tempfile.TemporaryFile() as caught:
        stderr = os.dup(2)
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            caught.seek(0)
            os.write(stderr, b"".join(line for line in caught if not _LOG_LINE.match(line)))
            os.close(stderr)
