"""The other scripts, what the page on TPUs says of them, and their style."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
LAUNCH = REPOSITORY / "launch"
PAGE = (REPOSITORY / "docs/tpu.md").read_text()


def page_commands() -> list[str]:
    """The lines of the page that call a script, joined where they go on."""
    lines = PAGE.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.startswith("    sh launch/")]


def page_settings() -> str:
    """The tpu.env of the page."""
    _, _, rest = PAGE.partition("cat >tpu.env <<'END'\n")
    return "".join(line.strip() + "\n" for line in rest.partition("END")[0].splitlines())


@pytest.mark.parametrize("command", page_commands())
def test_the_commands_of_the_page_are_understood_and_run_nothing_when_dry(cloud, command):
    cloud = cloud()
    (cloud.folder / "tpu.env").write_text(page_settings())
    _, script, *arguments = shlex.split(command)
    script = script.removeprefix("launch/")
    first = [arguments.pop(0)] if script == "tensorboard.sh" else []
    result = cloud.sh(script, *first, "--dry-run", *arguments)
    assert result.returncode == 0, result.stderr
    assert cloud.calls() == [] and not (cloud.folder / "runs").exists()
    printed = [shlex.split(line) for line in result.stdout.splitlines()]
    assert printed, "nothing was printed"
    if "--local" in arguments or script == "tensorboard.sh":
        return
    google = [words for words in printed if words[:3] == ["gcloud", "compute", "tpus"]]
    assert google and all({"--zone=us-west4-a", "--project=my-project"} <= {*w} for w in google)
    if script == "babysit.sh":
        assert [words[4] for words in google] == (
            ["create", "describe", "scp", "ssh", "ssh", "ssh", "delete"]
        )
        run = arguments[arguments.index("--") + 1 :]
        [sent] = [words[-4] for words in google if "worker.sh start" in words[-4]]
        assert shlex.split(sent)[-len(run) :] == run, "the command arrives as it was given"
        assert any(words.startswith("--service-account=firth-tpu@") for words in google[0])


def test_the_page_shows_every_script():
    said = {shlex.split(command)[1] for command in page_commands()}
    assert {f"launch/{path.name}" for path in LAUNCH.glob("*.sh")} - said == {"launch/local.sh"}


@pytest.mark.parametrize(
    ("kind", "runtime"),
    [
        ("v4-8", "tpu-ubuntu2204-base"),
        ("v5litepod-256", "v2-alpha-tpuv5-lite"),
        ("v5p-512", "v2-alpha-tpuv5"),
        ("v6e-256", "v2-alpha-tpuv6e"),
    ],
)
def test_the_software_fits_the_tpu(cloud, kind, runtime):
    settings = f"--project=p --zone=z --name=n --type={kind} --max-hours=1 --dry-run".split()
    result = cloud().sh("babysit.sh", *settings, "--", "firth", "train", "--workdir=gs://b/x")
    assert f"--runtime-version={runtime}" in result.stdout, result.stderr


def test_a_bucket_is_mounted_on_every_worker_once(cloud):
    cloud = cloud()
    for name, text in {
        "mountpoint": '[ -e "$HOME/mounted" ]',
        "sudo": 'echo "sudo $*" >>"$HOME/mounts"',
        "gcsfuse": 'echo "$*" >>"$HOME/mounts"; : >"$HOME/mounted"',
    }.items():
        cloud.add_program(name, text)
    settings = [
        "--project=p",
        "--zone=z",
        "--name=base",
        "--type=v4-16",
        "--bucket=gs://b",
        "--max-hours=1",
    ]
    run = ["firth", "train", "--workdir", "/mnt/b/run"]
    assert cloud.sh("babysit.sh", *settings, "--keep", "--", *run).returncode == 0
    assert cloud.sh("run.sh", *settings[:-1], "--", *run).returncode == 0
    for worker in range(2):
        *_, mounted = cloud.lines(f"vm-1-worker-{worker}/mounts")
        assert mounted == "--implicit-dirs --rename-dir-limit=100000 b /mnt/b"
        assert len(cloud.lines(f"vm-1-worker-{worker}/mounts")) == 3
        installs = [
            line for line in cloud.lines(f"vm-1-worker-{worker}/python3") if "--editable" in line
        ]
        assert len(installs) == 1, "installed once"


def test_logs_are_fetched_as_they_grow(cloud):
    cloud = cloud()
    settings = ["--project=p", "--zone=z", "--name=base"]
    assert cloud.sh("babysit.sh", *settings, "--type=v4-8", "--max-hours=1", "--keep", "--",
                    "firth", "train", "--workdir=gs://b/x").returncode == 0  # fmt: skip
    before = cloud.log(1, 1)
    with (cloud.stub / "vm-1-worker-1/firth-run/log").open("a") as file:
        file.write("more\n")
    assert cloud.sh("logs.sh", *settings).returncode == 0
    assert cloud.log(1, 1) == before + "more\n"


def run_sbatch(tmp_path, status: int, restarts: int = 0):
    """(exit status, whether the job was queued again, what srun was told)."""
    programs = tmp_path / "bin"
    environment = tmp_path / ".venv/bin"
    for folder in (programs, environment):
        folder.mkdir(parents=True, exist_ok=True)
    for program, text in {
        programs / "srun": f'echo "srun $*"; exit {status}',
        programs / "scontrol": 'echo "scontrol $*"',
        environment / "firth": "exit 0",
    }.items():
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    result = subprocess.run(
        ["bash", str(LAUNCH / "firth.sbatch"), "train", "--config", "bert.py:base"],
        env={
            "PATH": f"{programs}:/usr/bin:/bin",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "node[1-2]",
            "SLURM_RESTART_COUNT": str(restarts),
        },
        capture_output=True,
        text=True,
    )
    assert "firth train --config bert.py:base" in result.stdout, result.stderr
    return result.returncode, "scontrol requeue 7" in result.stdout


def test_a_slurm_job_is_queued_again_by_the_rules_of_the_babysitter(tmp_path):
    assert run_sbatch(tmp_path, 0) == (0, False)
    assert run_sbatch(tmp_path, 2) == (2, False)
    assert run_sbatch(tmp_path, 143, restarts=99) == (143, True)
    assert run_sbatch(tmp_path, 75) == (75, True)
    assert run_sbatch(tmp_path, 75, restarts=20) == (75, False)


def test_skypilot_never_starts_bad_input_again():
    task = yaml.safe_load((LAUNCH / "sky.yaml").read_text())
    codes = task["resources"]["job_recovery"]["recover_on_exit_codes"]
    assert 143 in codes and 75 in codes and 2 not in codes and 0 not in codes
    for part in ("setup", "run"):
        subprocess.run(["sh", "-n"], input=task[part], text=True, check=True)


def test_shellcheck_finds_nothing():
    beside = Path(sys.executable).parent  # where pip puts it; PATH need not name it
    program = shutil.which("shellcheck", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    scripts = [*LAUNCH.rglob("*.sh"), LAUNCH / "firth.sbatch", REPOSITORY / ".ci/run"]
    result = subprocess.run([program, *scripts], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
