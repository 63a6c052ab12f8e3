"""A run is built with the way of computing attention that was chosen for its devices."""

import pytest

from firth import train as loop
from firth.recipe import read_recipe


class BuiltError(Exception):
    """Raised where the parts of a run would be built, with their config."""


@pytest.mark.parametrize("chosen", ["plain", "cudnn"])
def test_a_run_is_built_with_what_was_chosen(tmp_path, monkeypatch, chosen):
    asked = []

    def choose(fields):
        asked.append(fields.attention)
        return chosen

    def build(config, *_, **__):
        raise BuiltError(config.model.attention)

    monkeypatch.setattr(loop, "choose_attention", choose)
    monkeypatch.setattr(loop.experiment, "build", build)
    config = read_recipe("bert.py:tiny", ["--config.model.attention=auto"])
    with pytest.raises(BuiltError, match=f"^{chosen}$"):
        loop.train(config, tmp_path / "run")
    assert asked == ["auto"] and config.model.attention == "auto"
