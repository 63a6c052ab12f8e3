"""What kernels take: read from a program, and counted again in the compiler's schedules."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from firth.planning.compiler import hlo
from firth.planning.compiler.kernels import CYCLES, Kernel, kernel
from firth.planning.compiler.work import work
from firth.planning.hardware import CHIPS

COUNT = Path(__file__).parents[3] / "experiments/pods/kernels.py"
SCORES = 16 * 16 * 512 * 512
CALL = """ENTRY %main (q: bf16[16,512,1024]) -> bf16[16,512,1024] {
  %q = bf16[16,512,1024] parameter(0)
  ROOT %k.1 = bf16[16,512,1024] custom-call(%q), custom_call_target="tpu_custom_call", \
metadata={op_name="jit(step)/jvp(encoder)/stack/layer_0/attention/cond/branch_0_fun/NAME/\
pallas_call"}, backend_config={"custom_call_config":{"cost_estimate":{"flops":"100",\
"transcendentals":"67108864","bytes_accessed":"2000","remote_bytes_transferred":"0"}}}
}"""


def called(name):
    return hlo.parse(CALL.replace("NAME", name))


def test_a_known_kernel_takes_cycles_by_its_scores_shared_by_the_cores():
    name = "fused_attention_forward"
    one = called(name).computations["main"]["k.1"]
    for chip, cores in (("v5e", 1), ("v5p", 2)):
        expected = SCORES * CYCLES[name][chip] / cores
        assert kernel(one, CHIPS[chip]) == Kernel(100, 2000, round(expected))
    assert kernel(one, None) == Kernel(100, 2000, 0)


def test_of_a_kernel_that_is_not_known_only_what_it_says_counts():
    one = called("another").computations["main"]["k.1"]
    assert kernel(one, CHIPS["v5e"]) == Kernel(100, 2000, 0)


def test_each_kind_of_kernel_has_cycles_of_its_own():
    for name, per_chip in CYCLES.items():
        one = called(name).computations["main"]["k.1"]
        assert kernel(one, CHIPS["v5e"]).cycles == round(SCORES * per_chip["v5e"])


def test_a_kernel_counts_in_the_work_of_a_program():
    found = work(called("fused_attention_backward"), CHIPS["v5e"])
    cycles = round(SCORES * CYCLES["fused_attention_backward"]["v5e"])
    assert (found.flops, found.hbm_bytes, found.cycles) == (100, 2000, cycles)
    assert found.parts == {"forward attention/fused_attention_backward": cycles}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("libtpu")
@pytest.mark.parametrize("chip", ["v5e", "v6e"])
def test_the_compiler_schedules_as_many_bundles_as_planned(chip):
    """Within a tenth: schedules differ by what surrounds a kernel, and by the compiler."""
    command = [sys.executable, COUNT, "--chips", chip]
    said = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)
    pairs = re.findall(r"([\d.]+) cycles a score, planned ([\d.]+)", said.stdout)
    assert len(pairs) == len(CYCLES)
    for found, planned in pairs:
        assert float(found) == pytest.approx(float(planned), rel=0.1)
