"""TensorFlow beside JAX: without the accelerator and without its log lines.

Firth uses it on the CPU, to read datasets and to prefetch batches. The import takes a few seconds,
so it happens only when needed.
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

# Libraries that write log lines while they load, before they read TF_CPP_MIN_LOG_LEVEL.
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
    """Whether TensorFlow is installed; imports nothing."""
    return importlib.util.find_spec("tensorflow") is not None


def import_tensorflow():
    """Import the module `tensorflow` without accelerators; raises ImportError if it is missing.

    It logs nothing, not even errors, which reach the caller as exceptions. With
    TF_CPP_MIN_LOG_LEVEL=0 in the environment it logs everything.
    """
    with _importing:
        if "tensorflow" not in sys.modules and has_tensorflow():
            if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # JAX sets 1
                os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
            if os.environ["TF_CPP_MIN_LOG_LEVEL"] != "0":
                _load_silently()
        import tensorflow as tf

        # The accelerator belongs to JAX; otherwise TensorFlow would take all of its memory.
        with contextlib.suppress(RuntimeError):  # the caller's TensorFlow already runs
            for kind in ("GPU", "TPU"):
                tf.config.set_visible_devices([], kind)
        return tf


def _load_silently() -> None:
    """Load the talkative libraries silently, so that the import finds them loaded."""
    folder = Path(importlib.util.find_spec("tensorflow").submodule_search_locations[0])
    with _without_log_lines():
        for name in _TALKATIVE:
            with contextlib.suppress(OSError):  # other releases may have others
                ctypes.CDLL(str(folder / name))


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Capture file descriptor 2, then write everything but the log lines to it."""
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
