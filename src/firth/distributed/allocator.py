"""How this process's memory is handed out: freed memory is kept, on hosts without an accelerator.

XLA takes the buffers of every step from malloc and frees them after it. glibc gives large blocks
back to the kernel at once, so that each step faults in hundreds of megabytes of zeroed pages again.
On two cores that was a fifth to a third of the time of small bodies (experiments/step_time).
"""

import ctypes
import os

from firth.distributed.libtpu import accelerator

# mallopt(3): parameter -> (number, value)
KEEP = {
    "M_ARENA_MAX": (-8, 1),  # an arena of a thread cannot keep blocks of more than 64 MiB
    "M_MMAP_MAX": (-4, 0),  # nor can a block that has a mapping of its own
    "M_TRIM_THRESHOLD": (-1, -1),  # the end of the heap stays
}


def keep_freed_memory() -> bool:
    """Keep freed memory for the next step; call it before the process has threads.

    True if it is set. Nothing changes where an accelerator holds the arrays, where the C library is
    not glibc, or where variables of the environment (MALLOC_..., GLIBC_TUNABLES) have a say.
    """
    chosen = [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]
    libc = ctypes.CDLL(None)
    if chosen or accelerator() or not hasattr(libc, "gnu_get_libc_version"):
        return False
    return all([libc.mallopt(number, value) for number, value in KEEP.values()])
