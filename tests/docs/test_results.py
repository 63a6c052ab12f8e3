"""The page of results: what it names exists, and no experiment is left out."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "results.md").read_text()
# No GPU was at hand yet; a guard of other experiments' figures.
WITHOUT_CLAIM = {"gpu", "speed"}


def test_every_experiment_is_in_the_table():
    folders = {path.parent.name for path in ROOT.glob("experiments/*/*.*")} - {"__pycache__"}
    assert folders - set(re.findall(r"`experiments/(\w+)`", TEXT)) == WITHOUT_CLAIM


def test_what_the_table_names_exists():
    named = set(re.findall(r"`((?:tests|experiments)/[\w./]+)`", TEXT))
    assert len(named) > 50
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
