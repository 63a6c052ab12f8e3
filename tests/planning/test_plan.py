"""`firth plan`: what it prints, and what it refuses."""

import json

import pytest

from firth.cli import main

SHORT = "--config.model.scan=True"  # the same parameters, traced once instead of layer by layer


def run(capsys, *argv):
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def refused(capsys, *argv) -> str:
    assert main(["plan", *argv]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("firth plan: error: ") and "\n" not in error
    return error


def test_one_recipe_is_a_page(capsys):
    text = run(capsys, "--config", "bert.py:base,length=512", "--chips=v5e:16")
    for part in (
        "1,000,000 updates of 256 rows of 512 tokens: 131 billion tokens",
        "110,106,428",
        "6.43e+19   the paper prints 6.4e19 for BERT-Base",
        "16 x v5e (v5litepod-16): data 16, fsdp 1, tensor 1",
        "1.641 of 16.0 GiB, without activations",
        "assumed: 40% of 197 TFLOP/s",
        "assumed: a vocabulary of 30,522 tokens",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("bert.py:large,length=512", "1.9e20 for BERT-Large"),
        ("electra.py:small", "1.4e18 for ELECTRA-Small, which its rule gives for a generator of"),
        ("electra.py:base", "6.4e19 for ELECTRA-Base"),
        ("electra.py:large", "7.1e20 for ELECTRA-400K"),
    ],
)
def test_figures_of_the_electra_paper(name, figure, capsys):
    assert f"the paper prints {figure}" in run(capsys, f"--config={name}", SHORT)


def test_json_holds_the_same_and_costs_follow_from_it(capsys):
    argv = ["--config=bert.py:tiny", "--chips=v5e:4,h100:8", "--json", "--config.steps=1000"]
    argv += [
        "--config.batch_size=256",
        "--mfu=0.5",
        "--pue=2",
        "--kg-per-kwh=0.25",
        "--watts=500",
        "--usd=3",
    ]
    plan = json.loads(run(capsys, *argv))["bert.py:tiny"]
    assert plan["tokens"] == 1000 * 256 * 32
    assert plan["flops"]["run"] == 1000 * sum(plan["flops"]["update"].values())
    v5e, h100 = plan["hardware"]
    assert (v5e["accelerator_type"], h100["chip"], h100["chips"]) == ("v5litepod-4", "h100", 8)
    hours = plan["flops"]["run"] / (4 * 197e12 * 0.5) / 3600
    assert v5e["hours"] == pytest.approx(hours)
    assert v5e["usd"] == pytest.approx(hours * 4 * 3)
    assert v5e["kg"] == pytest.approx(hours * 4 * 0.5 * 2 * 0.25)


def test_what_is_computed_again_is_that_of_the_whole_run(capsys):
    argv = ["--config=bert.py:tiny", "--config.model.remat=full", "--json"]
    few, many = (
        json.loads(run(capsys, *argv, f"--config.steps={steps}"))["bert.py:tiny"]["flops"]
        for steps in (100, 300)
    )
    assert many["recomputed"] == 3 * few["recomputed"] > 0
    assert few["recomputed"] < few["run"] / 3  # the forward pass of the layers is a third of all


def test_several_recipes_are_a_table_and_a_chart(capsys, tmp_path):
    chart = tmp_path / "costs.png"
    argv = ["--config=bert.py:tiny", "--config=distilbert.py:tiny", f"--chart={chart}"]
    lines = run(capsys, *argv, "--config.accumulate=1").splitlines()
    assert lines[0].split()[:3] == ["recipe", "parameters", "tokens"]
    assert [line.split()[0] for line in lines[1:3]] == ["bert.py:tiny", "distilbert.py:tiny"]
    assert chart.read_bytes().startswith(b"\x89PNG") and [*tmp_path.iterdir()] == [chart]
    assert "ends in .png" in refused(capsys, *argv[:2], f"--chart={tmp_path}/costs.doc")


def test_what_does_not_fit_is_said_with_what_would_help(capsys):
    text = run(capsys, "--config=xlnet.py:large", "--chips=v5e:16", SHORT)
    assert "does not fit: 7.369 GiB too much; divide it, --config.mesh.fsdp=2" in text


def test_what_is_frozen_is_said_to_be_counted(capsys):
    text = run(capsys, "--config=bert.py:tiny", "--config.optimizer.freeze=('encoder/word',)")
    assert "as if nothing were frozen" in text and "embeddings" in text and " trained\n" in text


def test_list(capsys):
    text = run(capsys, "--list")
    assert all(name in text for name in ("v2", "v5litepod"[:2], "v6e", "p100", "h200", "mid 2025"))


@pytest.mark.parametrize(
    ("argv", "wrong"),
    [
        ([], "--config is required"),
        (["--config=bart.py"], "no recipe 'bart.py'"),
        (["--config=bert.py:tiny", "--chips=v9"], "no chip 'v9'"),
        (["--config=bert.py:tiny", "--chips=v5e:3"], "not a multiple of data x fsdp"),
        (["--config=bert.py:tiny", "--config.mesh.tensor=3"], "does not cover the 1 devices"),
        (["--config=finetune.py:task=rte,init=x"], "data.task='rte': a fine-tuning recipe"),
        (["--config=bert.py:tiny", "--config.stpes=5"], "did you mean 'steps'"),
        (["--config=bert.py:tiny", "--config.steps=0"], "steps=0"),
        (["--config=bert.py:tiny", "--workdir=runs/x"], "there is no option --workdir"),
        (["--config=bert.py:tiny", "--mfu=40"], "--mfu=40: expected a share"),
        (["--config=bert.py:tiny", "--pue=0.9"], "--pue=0.9"),
        (["--config=bert.py:tiny", "--kg-per-kwh=-1"], "--kg-per-kwh=-1"),
        (["--config=bert.py:tiny", "--mesh=auto"], "give --compile as well"),
        (["--config=bert.py:tiny", "--largest-batch"], "give --compile as well"),
        (["--config=bert.py:tiny", "--compile=v5e:3x5"], "no such slice; v5e: 1x1, 2x2"),
        (
            ["--config=bert.py:tiny", "--chart=nowhere/x.png"],
            "expected a file in a directory that exists",
        ),
        (
            ["--config=bert.py:tiny", "--config=finetune.py:task=rte,init=x"],
            "finetune.py:task=rte,init=x: data.task",
        ),
    ],
)
def test_bad_input_is_one_line(argv, wrong, capsys):
    assert wrong in refused(capsys, *argv)


def test_compiled_reports_are_printed_and_in_json(capsys, monkeypatch):
    """The compiler is asked for every slice, with what the command has set."""
    asked = []

    def report(config, slices, mesh, given, largest):
        asked.append((config.batch_size, slices, mesh, given, largest))
        return {where: {"fits": True} for where in slices}

    monkeypatch.setattr("firth.planning.compiler.compiled.report", report)
    monkeypatch.setattr(
        "firth.planning.compiler.compiled.lines", lambda name, found: [f"{name}: {found}"]
    )
    argv = ["--config=bert.py:tiny", "--compile=v5e:2x2,v5e:4x4", "--config.batch_size=64"]
    assert "'v5e:4x4': {'fits': True}" in run(capsys, *argv)
    printed = run(capsys, *argv, "--json", "--mesh=auto", "--largest-batch")
    compiled = json.loads(printed)["bert.py:tiny"]["compiled"]
    assert compiled == {"v5e:2x2": {"fits": True}, "v5e:4x4": {"fits": True}}
    slices, given = ["v5e:2x2", "v5e:4x4"], ["--config.batch_size=64"]
    assert asked == [(64, slices, None, given, False), (64, slices, "auto", given, True)]
