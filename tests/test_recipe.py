"""Recipes: found, read, overridden and recorded; every slip is one clear line."""

import importlib
import json
import os
import sys

import ml_collections
import pytest

from firth import recipe
from firth.errors import FirthError
from firth.run import recorded

# ---------------------------------------------------------------------------------- arguments


DEFAULTS = dict(size="base", length=128, rate=0.5, frozen=False)


def parse(arg):
    return recipe.parse_arg(arg, **DEFAULTS).to_dict()


@pytest.mark.parametrize(
    ("arg", "changes"),
    [
        (None, {}),
        ("", {}),
        ("mini", dict(size="mini")),
        ("mini,length=512", dict(size="mini", length=512)),
        ("length=64,size=tiny", dict(size="tiny", length=64)),
        ("rate=1e-3", dict(rate=1e-3)),
        ("rate=2", dict(rate=2.0)),
        ("frozen=true", dict(frozen=True)),
        ("frozen=False", dict(frozen=False)),
        ("frozen=1", dict(frozen=True)),
        ("size=hf:org/name", dict(size="hf:org/name")),
        ("size=a=b", dict(size="a=b")),
        ("size=", dict(size="")),
    ],
)
def test_parse_arg(arg, changes):
    expected = DEFAULTS | changes
    found = parse(arg)
    assert found == expected
    assert {k: type(v) for k, v in found.items()} == {k: type(v) for k, v in expected.items()}


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("lenght=5", r"no argument 'lenght'; did you mean 'length'\?"),
        ("zzz=5", r"no argument 'zzz'; it knows frozen, length, rate, size"),
        ("length=long", "length='long' is not a int"),
        ("length=1.5", r"length='1\.5' is not a int"),
        ("frozen=ture", "frozen='ture' is not a bool"),
        ("mini,512", "'512' should read name=value"),
    ],
)
def test_an_argument_that_cannot_be_is_refused(arg, message):
    with pytest.raises(FirthError, match=message):
        parse(arg)


# -------------------------------------------------------------------------------- the command


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A recipe of the user's own, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import ml_collections\n"
        "from firth.recipe import parse_arg\n"
        "def get_config(arg=None):\n"
        "    arg = parse_arg(arg, size='small', steps=7)\n"
        "    c = ml_collections.ConfigDict()\n"
        "    c.size, c.steps, c.rate, c.progress = arg.size, arg.steps, 0.1, True\n"
        "    c.optimizer = dict(name='adamw', freeze=(), multipliers=())\n"
        "    return c\n"
    )
    return tmp_path


def read(*argv):
    return recipe.from_command_line(list(argv), prog="firth train")


@pytest.mark.parametrize("given", [["--config=mine.py:tiny"], ["--config", "mine.py:tiny"]])
@pytest.mark.parametrize("workdir", [["--workdir=w"], ["--workdir", "w"]])
def test_both_spellings_of_the_flags_in_any_order(mine, given, workdir):
    changes = ["--config.steps=3", "--config.rate", "0.25"]
    for argv in (given + workdir + changes, workdir + given + changes, changes + workdir + given):
        config, folder = read(*argv)
        assert (config.size, config.steps, config.rate) == ("tiny", 3, 0.25)
        assert str(folder) == "w"


def test_overrides_are_those_of_the_given_arguments_not_of_this_process(mine, monkeypatch):
    """`main(argv)` in a notebook, or in another program with flags of its own."""
    monkeypatch.setattr(sys, "argv", ["other", "--config=x.py", "--config.steps=99", "--unknown"])
    config, _ = read("--config=mine.py", "--workdir=w", "--config.size=own")
    assert (config.size, config.steps) == ("own", 7)
    assert recipe.read_recipe("mine.py:huge").size == "huge"
    with pytest.raises(FirthError, match=r"no field 'sise'; did you mean 'size'\?"):
        read("--config=mine.py", "--workdir=w", "--config.sise=own")


def test_overrides_of_every_type(mine):
    config, _ = read(
        "--config=mine.py",
        "--workdir=w",
        "--config.progress=false",
        "--config.rate=1",
        "--config.optimizer.name=lamb",
        "--config.optimizer.freeze=('^encoder/', 'bias$')",
        "--config.optimizer.multipliers=(('layer_0/', 0.5), ('layer_1/', 0.75))",
    )
    assert config.progress is False and config.rate == 1.0 and isinstance(config.rate, float)
    assert config.optimizer.name == "lamb"
    assert config.optimizer.freeze == ("^encoder/", "bias$")
    assert config.optimizer.multipliers == (("layer_0/", 0.5), ("layer_1/", 0.75))
    one, _ = read("--config=mine.py", "--workdir=w", "--config.optimizer.freeze=^encoder/")
    assert one.optimizer.freeze == ("^encoder/",)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--config.stepps=3"], r"no field 'stepps'; did you mean 'steps'\?"),
        (
            ["--config.optimizer.frezee=()"],
            r"no field 'optimizer\.frezee'; did you mean 'optimizer\.freeze'",
        ),
        (
            ["--config.optimiser.name=x"],
            r"no field 'optimiser\.name'; did you mean 'optimizer\.name'",
        ),
        (["--config.qqqqqqqq=3"], "no field 'qqqqqqqq'; it knows .*steps"),
        (["--config.steps=many"], "steps='many': expected a whole number"),
        (["--config.progress=perhaps"], "progress='perhaps': expected True or False"),
        (["--config.optimizer=3"], "optimizer is a section; set one of its fields"),
        (["--stepz=3"], "stepz"),
        (["extra"], "unexpected argument 'extra'"),
        (["--config=mine.py:tiny,step=5"], r"no argument 'step'; did you mean 'steps'\?"),
        (["--config=mine.py:steps=x"], "steps='x' is not a int"),
        (["--config=none.py"], r"no recipe 'none\.py': not a file, and Firth ships .*bert\.py"),
    ],
)
def test_a_slip_is_one_line_with_the_nearest_name(mine, argv, message):
    given = [] if argv[0].startswith("--config=") else ["--config=mine.py"]
    with pytest.raises(FirthError, match=message) as error:
        read(*given, "--workdir=w", *argv)
    assert "\n" not in str(error.value) and "Traceback" not in str(error.value)


def test_what_is_required(mine, capsys):
    with pytest.raises(FirthError, match="--workdir is required"):
        read("--config=mine.py")
    for argv in (["--workdir=w"], ["--workdir=w", "--config.steps=3"]):
        with pytest.raises(FirthError, match="--config is required"):
            read(*argv)
    for argv, status in ((["--help"], 0), ([], 2)):
        with pytest.raises(SystemExit) as stopped:
            read(*argv)
        assert stopped.value.code == status
        assert "usage: firth train --config RECIPE" in capsys.readouterr().out


def test_the_config_is_locked(mine):
    for config in (read("--config=mine.py", "--workdir=w")[0], recipe.read_recipe("mine.py")):
        assert config.is_locked
        with pytest.raises(AttributeError):
            config.stepps = 3


# ------------------------------------------------------------------------------------ finding


def test_a_packaged_recipe_is_found_by_its_bare_name_and_the_users_own_comes_first(mine):
    assert (
        recipe.find_recipe("bert.py:mini,length=64")
        == f"{recipe.SHIPPED / 'bert.py'}:mini,length=64"
    )
    assert recipe.find_recipe("configs/bert.py") == str(recipe.SHIPPED / "bert.py")
    assert recipe.find_recipe("mine.py:x") == "mine.py:x"
    assert recipe.read_recipe("bert.py:mini").model.hidden_size == 256
    (mine / "bert.py").write_text((mine / "mine.py").read_text())
    assert recipe.find_recipe("bert.py:mini") == "bert.py:mini"
    assert recipe.read_recipe("bert.py:mini").to_dict()["size"] == "mini"


def test_a_file_without_get_config_is_no_recipe(mine):
    assert (recipe.SHIPPED / "common.py").is_file() and "common.py" not in recipe.shipped()
    for name in ("common.py", "__init__.py"):
        with pytest.raises(FirthError, match=rf"no recipe '{name}': not a file, and Firth ships"):
            recipe.find_recipe(name)
    (mine / "other.py").write_text("steps = 3\n")
    with pytest.raises(FirthError, match=r"other\.py is no recipe: it has no get_config"):
        read("--config=other.py", "--workdir=w")


def test_what_a_recipe_itself_raises_is_told_in_one_line(mine):
    (mine / "wrong.py").write_text("def get_config(arg=None):\n    return arg.size\n")
    for overrides in ([], ["--config.steps=5"]):
        with pytest.raises(FirthError, match="no attribute 'size'") as error:
            read("--config=wrong.py", "--workdir=w", *overrides)
        assert "\n" not in str(error.value) and "Traceback" not in str(error.value)


def test_an_edit_within_the_second_is_read(mine, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (mine / "beside.py").write_text("RATE = 1e-3")
    text = "import beside, ml_collections\nget_config = lambda: ml_collections.ConfigDict({})\n"
    for steps in (10, 20):
        (mine / "edited.py").write_text(text.format({"steps": steps}))
        os.utime(mine / "edited.py", (1e9, 1e9))
        assert recipe.read_recipe("edited.py").steps == steps
    assert not list(mine.rglob("__pycache__")) and not sys.dont_write_bytecode


def test_colons_and_equal_signs_in_an_argument_survive():
    config = recipe.read_recipe("finetune.py:task=tfds:glue/sst2,init=hf:org/name")
    assert config.data.task == "tfds:glue/sst2" and config.init_from == "hf:org/name"


# ---------------------------------------------------------------------------------- recording


def config_of(**changes):
    config = ml_collections.ConfigDict(
        dict(
            seed=0,
            steps=10,
            log_every=5,
            progress=True,
            data=dict(store="a", loader="thread", prefetch=2),
            optimizer=dict(freeze=("a", "b"), multipliers=(("x/", 0.5),)),
            eval=dict(every=3, batch_size=8),
            checkpoint=dict(keep=2, best=""),
            mesh=dict(data=-1),
            nonfinite="stop",
            spike=dict(policy="rollback", deviations=0.0),
            rollback=dict(batches=100),
            reduce_async=False,
            accumulate=1,
            evaluated=False,
        )
    )
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return config


@pytest.fixture
def begun(tmp_path):
    """A workdir with a checkpoint."""
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    return tmp_path


def test_a_config_without_a_checkpoint_gives_way(tmp_path):
    """A run that failed before it saved anything does not block its workdir."""
    recorded.record(config_of(), tmp_path)
    recorded.record(config_of(seed=7), tmp_path)
    assert recipe.read(tmp_path).seed == 7


def test_places_are_recorded_by_their_absolute_names(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    config = config_of(data__store="a/")
    assert recipe.located(config).data.store == str(tmp_path / "a")
    assert recipe.located(config_of(data__store="gs://b/s/")).data.store == "gs://b/s"
    for kept in ("gone", "hf:org/name", "module:Name", ""):
        assert recipe.located(config_of(data__store=kept)).data.store == kept


def test_one_place_by_another_name_is_the_same_config(begun, monkeypatch):
    """As from another folder, through a link, and for a workdir of before: a relative name."""
    (begun / "a").mkdir()
    (begun / "link").symlink_to("a")
    monkeypatch.chdir(begun)
    recorded.record(config_of(data__store="a"), begun)
    for name in ("a/", "./a", str(begun / "a"), "link"):
        recorded.record(recipe.located(config_of(data__store=name)), begun)
    (begun / "b").mkdir()
    with pytest.raises(FirthError, match=r"data\.store: .* there, .*/b' now"):
        recorded.record(recipe.located(config_of(data__store="b")), begun)


def test_the_config_is_recorded_and_read_back(tmp_path):
    recorded.record(config_of(), tmp_path)
    assert recipe.read(tmp_path).to_dict() == json.loads(json.dumps(config_of().to_dict()))
    recorded.record(config_of(), tmp_path)  # the same again is fine: tuples and lists are equal
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    "changes",
    [
        dict(log_every=1),
        dict(progress=False),
        dict(eval__every=9),
        dict(checkpoint__keep=5),
        dict(checkpoint__best="dev/accuracy"),
        dict(mesh__data=4),
        dict(data__loader="tf.data"),
        dict(data__prefetch=9),
        dict(nonfinite="rollback"),
        dict(spike__policy="stop"),
        dict(rollback__batches=7),
        dict(reduce_async=True),
    ],
)
def test_fields_that_change_no_learned_number_may_change(begun, changes):
    recorded.record(config_of(), begun)
    recorded.record(config_of(**changes), begun)
    assert recipe.read(begun).to_dict() == json.loads(json.dumps(config_of(**changes).to_dict()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(seed=7), "seed: 0 there, 7 now"),
        (dict(steps=9), "steps: 10 there, 9 now"),
        (dict(data__store="b"), r"data\.store: 'a' there, 'b' now"),
        (dict(spike__deviations=5.0), r"spike\.deviations: 0\.0 there, 5\.0 now"),
        (dict(accumulate=2), "accumulate: 1 there, 2 now"),
        (dict(evaluated=True), "evaluated: False there, True now"),
        (dict(optimizer__freeze=("a",)), r"optimizer\.freeze: \['a', 'b'\] there, \['a'\] now"),
    ],
)
def test_another_config_is_refused_and_the_record_stays(begun, changes, message):
    recorded.record(config_of(), begun)
    before = (begun / "config.json").read_bytes()
    with pytest.raises(FirthError, match=message):
        recorded.record(config_of(**changes), begun)
    assert (begun / "config.json").read_bytes() == before


def test_a_field_that_came_or_went_is_a_difference(begun):
    recorded.record(config_of(), begun)
    more, less = config_of(), config_of()
    more.extra = 1
    del less.steps
    with pytest.raises(FirthError, match="extra: None there, 1 now"):
        recorded.record(more, begun)
    with pytest.raises(FirthError, match="steps: 10 there, None now"):
        recorded.record(less, begun)


def test_a_run_from_before_a_field_goes_on_as_it_was(begun):
    recorded.record(config_of(), begun)
    recorded.record(config_of(reduce_dtype="float32"), begun)
    recorded.record(config_of(), begun)
    with pytest.raises(FirthError, match=r"reduce_dtype: 'float32' there, 'bfloat16' now"):
        recorded.record(config_of(reduce_dtype="bfloat16"), begun)


def test_a_recipe_without_later_fields_has_what_was_before_them(mine):
    text = (mine / "mine.py").read_text().replace("return c", "c.nonfinite = 'skip'; return c")
    (mine / "mine.py").write_text(text)
    for config in (read("--config=mine.py", "--workdir=w")[0], recipe.read_recipe("mine.py")):
        assert config.is_locked
        assert config.nonfinite == "skip" and config.spike.policy == "rollback"
        assert config.reduce_dtype == "float32" and not config.mesh.zero1
        assert config.rollback.to_dict() == {"batches": 100, "limit": 3}
        assert "model" not in config, "a family has its own defaults"
    with pytest.raises(FirthError, match="has no field 'reduce_dtype'"):
        read("--config=mine.py", "--workdir=w", "--config.reduce_dtype=bfloat16")


def test_every_recipe_that_ships_has_the_later_fields():
    own_runs = {"maxent.py", *(f"{family}.py" for family in recipe.OWN_RUNS)}
    for name in sorted(set(recipe.shipped()) - own_runs):
        own = importlib.import_module(f"firth.configs.{name.removesuffix('.py')}").get_config()
        later = {field for field in recipe.LATER if not field.startswith("model.")}
        assert later <= recipe.flatten(own).keys(), name


def test_a_folder_that_is_no_workdir(tmp_path):
    with pytest.raises(FirthError, match=r"is not a workdir: it has no config\.json"):
        recipe.read(tmp_path)
    (tmp_path / "config.json").write_text('{"seed": 0,\n "steps"')
    with pytest.raises(FirthError, match=r"config\.json:2: not valid JSON"):
        recipe.read(tmp_path)


def test_a_config_with_other_fields_is_a_copy():
    config = recipe.read_recipe("bert.py:tiny")
    changed = recipe.with_fields(config, {"model.scan": True, "mesh.fsdp": 4})
    assert (changed.model.scan, changed.mesh.fsdp) == (True, 4)
    assert (config.model.scan, config.mesh.fsdp) == (False, 1)
