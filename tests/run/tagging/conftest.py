"""What several tests of tagging read."""

import pytest
from helpers.lines import make_run


@pytest.fixture(scope="package")
def encoder(store, tmp_path_factory):
    """The workdir of a small BERT with random parameters; nobody writes there."""
    workdir = tmp_path_factory.mktemp("encoder") / "run"
    make_run(workdir, store)
    return workdir
