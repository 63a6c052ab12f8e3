"""`firth recipes`: what there is, and every field of one."""

import json

import pytest

from firth import recipe
from firth.cli import main
from firth.planning import recipes

OWN = '''"""Mine: nothing but BERT (Me 2026)."""

from firth.configs import bert


def get_config(arg=None):
    c = bert.get_config("tiny")
    c.batch_size = 7  # as many as fit
    return c
'''


def test_every_field_with_its_value_and_comment(capsys):
    name = "bert.py:medium,length=64"
    assert main(["recipes", name]) == 0
    text = capsys.readouterr().out
    fields = recipe.flatten(recipe.read_recipe(name))
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
    assert fields.keys() <= lines.keys()
    assert lines["data.length"].split()[1] == "64"
    assert lines["log_every"].split(None, 2)[1:] == ["100", "steps"]
    assert "fraction of the documents kept for evaluation" in lines["data.heldout"]
    assert "True: the same mask whenever" in lines["objective.static"]
    assert lines["data.store"].split()[1] == '""'
    for part in ("(Devlin et al. 2019)", "size=base, length=0, view=pairs", "firth prepare"):
        assert part in text


def test_json_has_the_values_themselves(capsys):
    assert main(["recipes", "bert.py:2x128", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    said = "appendix A.2; small sizes: laptop.py"
    assert found["fields"]["steps"] == {"value": 1_000_000, "comment": said}
    assert found["fields"]["optimizer.decay_exclude"]["value"] == ["norm/", "bias$"]
    assert main(["plan", "--config=bert.py:2x128", "--json"]) == 0
    parts = json.loads(capsys.readouterr().out)["bert.py:2x128"]["parameters"].values()
    assert found["parameters"] == sum(part["trained"] for part in parts)


def test_a_recipe_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "mine.py"]) == 0
    text = capsys.readouterr().out
    assert "Mine: nothing but BERT" in text and "  as many as fit" in text
    assert "appendix" in text, "bert.py's own comments are followed"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bart.py", "no recipe 'bart.py'"),
        ("bert.py:giant", "no size 'giant'"),
        ("bert.py:tiny,lenght=3", "did you mean 'length'"),
    ],
)
def test_an_unknown_recipe_is_one_line(name, said, capsys):
    assert main(["recipes", name]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_what_recipes_need():
    found = {
        name: " ".join(recipes.needs(recipe.read_recipe(name)))
        for name in ("bert.py", "finetune.py", "distilbert.py")
    }
    assert "store" in found["bert.py"] and "teacher" not in found["bert.py"]
    assert "labelled" in found["finetune.py"] and "weights" in found["finetune.py"]
    assert "teacher" in found["distilbert.py"] and "store" not in found["finetune.py"]


def test_the_list_names_every_recipe_size_and_need(capsys, monkeypatch):
    monkeypatch.setattr(recipes, "parameters", lambda name: 1_234_567)
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    for name in recipe.shipped():
        assert f"\n{name} " in f"\n{text}"
    assert "tiny (1.23M), mini (1.23M)" in text and "24 miniatures (6x512)" in text


def test_the_parameters_of_a_size_are_those_of_its_plan():
    """Those of the paper and its heads: 110M for BERT-base (test_plan has the same number)."""
    assert recipes.parameters("bert.py:base") == 110_106_428


RECURRENT = ["lstm.py", "char_lstm.py", "rnn.py", "awd_lstm.py", "melis.py", "rhn.py"]
RECURRENT += ["char_cnn_lstm.py"]


@pytest.mark.parametrize("name", RECURRENT)
def test_every_size_of_a_recurrent_recipe_has_parameters(name):
    """Layers that differ cannot be scanned, and Melis' sizes are those of the recipe."""
    sizes = recipes._overview(name)["sizes"]
    assert "tiny" in sizes and all(count > 10_000 for count in sizes.values())
    assert name != "melis.py" or set(sizes) == {"tiny", "10m_d1", "24m_d4", "24m_d2"}
