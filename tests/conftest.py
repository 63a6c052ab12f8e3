"""Fixtures shared by all tests; real data is found through FIRTH_DATA (default ../shared/data)."""

import functools
import gc
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

import account
import pytest
from helpers.compiler import XLA_FLAGS

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# sentencepiece's description of its models is newer than the protobuf that Beam allows; it is read
# by transformers alone, and the same.
os.environ.setdefault("TEMPORARILY_DISABLE_PROTOBUF_VERSION_CHECK", "true")

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure(config):
    """Eight CPU devices in this process, and in none that it starts; a quick compiler in both.

    What must be compiled as users do says `XLA_FLAGS=""`. All processes of a session share the
    programs that took long to compile.
    """
    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="firth-tests-")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    if "FIRTH_CACHE" not in os.environ:  # programs that the code compiles, not those of the user
        os.environ["FIRTH_CACHE"] = folder = tempfile.mkdtemp(prefix="firth-cache-")
        config.add_cleanup(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    config.pluginmanager.register(account.Account(), "account")
    workers = config.getoption("numprocesses", None) and not config.getoption("collectonly")
    if not workers:  # else they run the tests
        import jax

        jax.config.update("jax_num_cpu_devices", 8)


def pytest_collection_finish(session):
    """Leave what is imported by now out of the garbage collector's rounds: a twentieth of all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data():
    """`shared_data("vocabs/x.txt")` is that file of the shared data, or skips where that is not."""
    root = Path(os.environ.get("FIRTH_DATA", REPOSITORY.parent / "shared" / "data"))

    def find(name: str) -> Path:
        if not root.exists():
            pytest.skip(f"{root} is not there; set FIRTH_DATA to the folder of shared data")
        assert (root / name).exists(), f"{name} is not under {root}"
        return root / name

    return find


@pytest.fixture(scope="session")
def libtpu():
    """For tests that compile for TPUs: skips on machines that the compiler is not made for."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        pytest.skip("needs Linux on x86_64: libtpu has no other wheel")


@pytest.fixture(scope="session")
def torch():
    """The module, which takes half a GB, for the tests that compare with transformers."""
    import torch

    return torch


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """The store of a small corpus, its tokenizer beside it in `tok`; nobody writes there."""
    from helpers.runs import make_store

    return make_store(tmp_path_factory.mktemp("corpus"))
