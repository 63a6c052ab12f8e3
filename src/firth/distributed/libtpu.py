"""The accelerator of this host, detected from files and variables, without importing JAX."""

import importlib.util
import os
import sys
from pathlib import Path

TPU_VARIABLES = ("TPU_NAME", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES", "TPU_ACCELERATOR_TYPE")


def accelerator(root: Path = Path("/"), environment=os.environ) -> str:
    """The accelerator: "TPU (EVIDENCE)" or "GPU (EVIDENCE)", or "" if this host has none.

    JAX_PLATFORMS=cpu hides any accelerator; an empty CUDA_VISIBLE_DEVICES hides the GPUs. Where
    libtpu finds no TPU it sets the variables to warnings, which its process's children inherit.
    """
    if "cpu" in environment.get("JAX_PLATFORMS", ""):
        return ""
    google = "0x1ae0"  # the PCI vendor; a numbered vfio group may be any passed-through device
    vendors = (path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/vendor"))
    groups = [] if google not in vendors else sorted(root.glob("dev/vfio/[0-9]*"))
    values = {name: environment.get(name, "") for name in TPU_VARIABLES}
    variables = [name for name in values if values[name] and "WARNING" not in values[name]]
    for evidence in (*sorted(root.glob("dev/accel[0-9]*")), *groups, *variables):
        return f"TPU ({evidence})"
    hidden = environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    for evidence in () if hidden else sorted(root.glob("dev/nvidia[0-9]*")):
        return f"GPU ({evidence})"
    return ""


def leave_libtpu_alone() -> None:
    """Set JAX_PLATFORMS=cpu if libtpu is installed (to compile for TPUs) on a host without a TPU.

    JAX would choose the CPU by itself, but only after libtpu has printed half a dozen lines about
    the missing TPU. Call it before JAX looks for devices. It changes nothing if JAX_PLATFORMS is
    set, if the host has an accelerator, or if another plugin of JAX is installed.
    """
    installed = importlib.util.find_spec("libtpu") and not importlib.util.find_spec("jax_plugins")
    if installed and "JAX_PLATFORMS" not in os.environ and not accelerator():
        os.environ["JAX_PLATFORMS"] = "cpu"
        if "jax" in sys.modules:  # JAX has already read the variable
            sys.modules["jax"].config.update("jax_platforms", "cpu")
