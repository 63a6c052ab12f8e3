"""Where a process belongs, what its host has, what must be equal, and which rows are its own."""

import os
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from firth.distributed import job
from firth.errors import FirthError
from firth.training import partition


@pytest.fixture(autouse=True)
def no_place(monkeypatch):
    for name in ("COORDINATOR", "PROCESSES", "PROCESS", "PATIENCE", "STALL", "GATHER"):
        monkeypatch.delenv(f"FIRTH_{name}", raising=False)


def test_flags_win_over_variables_and_leave_the_rest(monkeypatch):
    monkeypatch.setenv("FIRTH_COORDINATOR", "a:1")
    monkeypatch.setenv("FIRTH_PROCESSES", "4")
    monkeypatch.setenv("FIRTH_PATIENCE", "7")
    argv = ["--config=bert.py", "--process=3", "--coordinator", "b:2", "--config.steps=1"]
    place, rest = job.from_command_line(argv)
    assert (place.coordinator, place.processes, place.process) == ("b:2", 4, 3)
    assert (place.patience, place.stall, place.gather) == (7.0, 3600.0, 300.0)
    assert rest == ["--config=bert.py", "--config.steps=1"]


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--processes=2"], "give all three"),
        (["--processes=2", "--process=2", "--coordinator=a:1"], "0 <= process < processes"),
        (["--processes=2", "--process=1", "--coordinator=a"], "HOST:PORT"),
        (["--processes=two"], "--processes"),
        (["--patience=0"], "more than 0"),
    ],
)
def test_a_place_that_cannot_be_is_refused(argv, said):
    with pytest.raises(FirthError, match=said):
        job.from_command_line(argv)


def test_one_process_needs_nobody(monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", lambda **_: pytest.fail("it waits"))
    job.join(job.from_command_line(["--processes=1"])[0])
    job.join(job.from_command_line([])[0])
    assert job.all_gather("alone") == ["alone"] and job.leads()


def test_clusters_are_known_by_their_variables(tmp_path):
    assert not job.in_cluster({}, tmp_path)
    assert not job.in_cluster({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "1"}, tmp_path)
    assert job.in_cluster({"SLURM_STEP_NUM_TASKS": "8"}, tmp_path)
    assert job.in_cluster({"TPU_WORKER_ID": "0"}, tmp_path)
    assert not job.in_cluster({"TPU_WORKER_ID": "0", "JAX_PLATFORMS": "cpu"}, tmp_path)


def test_an_accelerator_is_seen_by_its_devices(tmp_path):
    def with_files(*names):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("0x1ae0\n" if name.endswith("vendor") else "")
        root.mkdir(exist_ok=True)
        return root

    assert job.accelerator(with_files(), {}) == ""
    assert job.accelerator(with_files("dev/accel0"), {}).startswith("TPU")
    assert job.accelerator(with_files("dev/accel/accel0"), {}) == ""  # some other accelerator
    google = "sys/bus/pci/devices/0000:00:05.0/vendor"
    assert job.accelerator(with_files("dev/vfio/0", google), {}).startswith("TPU")
    assert job.accelerator(with_files("dev/vfio/0"), {}) == ""  # some device in a guest's hands
    assert job.accelerator(with_files("dev/nvidia0"), {}).startswith("GPU")
    assert job.accelerator(with_files("dev/nvidia0"), {"CUDA_VISIBLE_DEVICES": ""}) == ""
    assert job.accelerator(with_files("dev/nvidia0"), {"JAX_PLATFORMS": "cpu"}) == ""


def test_the_cpu_of_a_host_with_an_accelerator_is_refused(monkeypatch):
    monkeypatch.setattr(job, "accelerator", lambda: "GPU (/dev/nvidia0)")
    with pytest.raises(FirthError, match=r"has a GPU \(/dev/nvidia0\).*firth\[gpu\]"):
        job.check_accelerator()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    job.check_accelerator()


def test_a_workdir_that_cannot_be_written_is_found_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FirthError, match="cannot be written"):
        job.check_workdir(tmp_path / "file" / "work")
    job.check_workdir(tmp_path / "new" / "work")
    assert os.listdir(tmp_path / "new" / "work") == []


def test_a_folder_that_is_not_shared_is_refused_by_all(tmp_path, monkeypatch):
    """Process 1 of two, which has a disk of its own."""
    answers = iter([["what process 0 wrote", ""], ["True", "False"]])
    monkeypatch.setattr(job, "all_gather", lambda text="": next(answers))
    monkeypatch.setattr(job, "number", lambda: 1)
    monkeypatch.setattr(job.time, "monotonic", iter(range(0, 1000, 20)).__next__)
    with pytest.raises(FirthError, match=r"not one folder for all.* process 1 does not see"):
        job.check_workdir(tmp_path)
    job.check_workdir(tmp_path, shared=False)  # asks nobody
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------- own rows


def mesh_of(owners, **sizes):
    """A mesh of devices that belong to these processes."""
    shape = [sizes.get(axis, 1) for axis in partition.AXES]
    devices = np.array([SimpleNamespace(process_index=p) for p in owners]).reshape(shape)
    return SimpleNamespace(devices=devices, shape=dict(zip(partition.AXES, shape, strict=True)))


@pytest.mark.parametrize(
    "owners, sizes, expected",
    [
        ([0, 1, 2, 3], dict(data=4), [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ([0, 0, 1, 1], dict(data=4), [(0, 2), (1, 2)]),
        ([0, 0, 1, 1], dict(data=2, fsdp=2), [(0, 2), (1, 2)]),
        ([0, 0, 1, 1], dict(data=2, tensor=2), [(0, 2), (1, 2)]),
        ([0, 1, 2, 3], dict(data=2, tensor=2), [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ([0, 1], dict(tensor=2), [(0, 1), (0, 1)]),
        ([1, 0], dict(data=2), [(1, 2), (0, 2)]),
    ],
)
def test_each_process_reads_the_rows_of_its_devices(monkeypatch, owners, sizes, expected):
    """Expected: (index, count) of each process."""
    mesh = mesh_of(owners, **sizes)
    for process, own in enumerate(expected):
        monkeypatch.setattr(partition.jax, "process_index", lambda process=process: process)
        assert partition.own_slice(mesh) == own


def test_rows_that_do_not_lie_side_by_side_are_refused(monkeypatch):
    monkeypatch.setattr(partition.jax, "process_index", lambda: 0)
    for owners in ([0, 1, 0, 1], [0, 0, 0, 1], [1, 0, 0, 1]):
        with pytest.raises(FirthError, match="side by side"):
            partition.own_slice(mesh_of(owners, data=4))
