"""This machine as a chip, and the laptop of the table."""

import json
import os

import jax
import numpy as np
import psutil
import pytest

from firth.cli import main
from firth.planning import here
from firth.planning.cost import Assumptions, stated
from firth.planning.hardware import CHIPS, GIB, find_chip, parse_chips


def test_a_cpu_is_a_laptop():
    assert find_chip("CPU") is find_chip("laptop") is CHIPS["laptop"]
    assert parse_chips("cpu:1")[0].name == "laptop" and CHIPS["laptop"].hbm == 16 * GIB
    words = " ".join(stated(CHIPS["laptop"], Assumptions()))
    assert "40% of 0.4 TFLOP/s (float32 on the CPU, a guess" in words and "no price" in words
    assert "3 USD" in " ".join(stated(CHIPS["laptop"], Assumptions(usd=3)))


def test_the_rate_of_products_is_of_the_order_of_numpys():
    """Both multiply on the same cores; a factor of ten would be another unit."""
    import time

    x = np.ones((1024, 1024), np.float32)
    began = time.perf_counter()
    for _ in range(5):
        x @ x
    numpys = 5 * 2 * 1024**3 / (time.perf_counter() - began)
    assert numpys / 10 < here.product_rate(0.2) < numpys * 10


def test_memory_is_that_of_the_machine_or_its_container(tmp_path):
    total = psutil.virtual_memory().total
    assert here.memory(tmp_path) == total
    assert abs(here.available() - psutil.virtual_memory().available) < 0.1 * total
    limit = tmp_path / "sys/fs/cgroup/memory.max"
    limit.parent.mkdir(parents=True)
    limit.write_text("max\n")
    assert here.memory(tmp_path) == total
    limit.write_text(f"{total // 3}\n")
    assert here.memory(tmp_path) == total // 3 == here.available(tmp_path)


def test_a_plan_of_this_machine(capsys, monkeypatch):
    monkeypatch.setattr(here, "product_rate", lambda seconds: 2e11)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    argv = ["plan", "--config=bert.py:tiny", "--config.steps=1000", "--chips=here", "--json"]
    assert main(argv) == 0
    plan = json.loads(capsys.readouterr().out)["bert.py:tiny"]
    (where,) = plan["hardware"]
    assert (where["chip"], where["chips"]) == ("here", 1)
    assert where["hours"] == pytest.approx(plan["flops"]["run"] / (2e11 * 0.4) / 3600)
    assert where["hbm"] == here.memory()
    assert f"on {os.cpu_count()} cores, measured" in " ".join(where["assumed"])
