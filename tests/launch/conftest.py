import sys

import pytest
from helpers.cloud import Cloud, make_checkout


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    if sys.platform != "linux":
        pytest.skip("needs Linux: a TPU VM has its flock and setsid")
    return make_checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def cloud(checkout, tmp_path):
    """`cloud(states=...)` plays a Google Cloud in the folder of the test."""
    return lambda **scenario: Cloud(checkout, tmp_path, **scenario)
