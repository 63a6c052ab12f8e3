"""Fixtures shared by all tests; real data is found through FIRTH_DATA (default ../shared/data)."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure():
    """Eight CPU devices in this process, and in none that it starts."""
    import jax

    jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(scope="session")
def shared_data():
    """`shared_data("vocabs/x.txt")` is that file of the shared data, or skips with the reason."""
    root = Path(os.environ.get("FIRTH_DATA", REPOSITORY.parent / "shared" / "data"))

    def find(name: str) -> Path:
        path = root / name
        if not path.exists():
            pytest.skip(f"{name} is not under {root}; set FIRTH_DATA to the folder of shared data")
        return path

    return find
