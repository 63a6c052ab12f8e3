"""Scripts of experiments as modules."""

import importlib.util
from pathlib import Path

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def load_script(name: str):
    """The module of experiments/NAME/run.py."""
    spec = importlib.util.spec_from_file_location(name, EXPERIMENTS / name / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
