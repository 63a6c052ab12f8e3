import shutil

import pytest
from made_cloud import Cloud, make_checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    for program in ("git", "flock", "setsid"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed; a TPU VM has it, and so has any Linux")
    return make_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def cloud(checkout, tmp_path):
    """`cloud(states=...)` plays a Google Cloud in the folder of the test."""
    return lambda **scenario: Cloud(checkout, tmp_path, **scenario)
