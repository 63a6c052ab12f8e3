"""Which accelerator this host has, told by its files and variables: JAX is not imported here."""

import importlib.util
import os
import sys
from pathlib import Path

TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE")


def accelerator(root: Path = Path("/"), environment=os.environ) -> str:
    """What shows that this host has one, "TPU (...)" or "GPU (...)"; "" where it has none.

    JAX_PLATFORMS=cpu says that it is not to be used, as does an empty CUDA_VISIBLE_DEVICES.
    """
    if "cpu" in environment.get("JAX_PLATFORMS", ""):
        return ""
    google = "0x1ae0"  # the PCI vendor; a numbered vfio group may be any passed-through device
    vendors = (path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor"))
    groups = [] if google not in vendors else sorted(root.glob("dev/vfio/[0-9]*"))
    variables = [name for name in TPU_VARIABLES if environment.get(name)]
    for found in (*sorted(root.glob("dev/accel[0-9]*")), *groups, *variables):
        return f"TPU ({found})"
    hidden = environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    for found in () if hidden else sorted(root.glob("dev/nvidia[0-9]*")):
        return f"GPU ({found})"
    return ""


def leave_libtpu_alone() -> None:
    """Set JAX_PLATFORMS=cpu where libtpu is installed, to compile for TPUs, but nothing to run on.

    JAX would come to the CPU by itself, after libtpu had looked for a TPU and said on the terminal,
    in half a dozen lines, that there is none. To be called before JAX looks for devices. A
    JAX_PLATFORMS that is set stays; where another plugin of JAX is installed, JAX chooses as ever.
    """
    installed = importlib.util.find_spec("libtpu") and not importlib.util.find_spec("jax_plugins")
    if installed and "JAX_PLATFORMS" not in os.environ and not accelerator():
        os.environ["JAX_PLATFORMS"] = "cpu"
        if "jax" in sys.modules:  # which has read it already
            sys.modules["jax"].config.update("jax_platforms", "cpu")
