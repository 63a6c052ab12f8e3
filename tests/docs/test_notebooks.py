"""The notebooks: each runs from its first cell to its last, and is kept as it ran."""

import json
import re
from pathlib import Path

import pytest
from helpers.cases import nightly
from helpers.notebooks import NOTEBOOKS, execute
from helpers.published.bert import minilm

ROOT = Path(__file__).parents[2]
SMALL = {  # numbers of a notebook -> for a test
    "REVIEWS, STEPS = 2000, 800": "REVIEWS, STEPS = 60, 6",
    "LABELS, TESTS = 1000, 300": "LABELS, TESTS = 40, 16",
    "[::8]][:1000]": "[::8]][:60]",
}


def cells(path: Path) -> list[dict]:
    """The code cells of a notebook."""
    whole = json.loads(path.read_text())
    return [cell for cell in whole["cells"] if cell["cell_type"] == "code"]


def test_there_are_two_and_readme_names_them():
    readme, pages = (ROOT / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        assert f"docs/notebooks/{path.name}" in readme
        assert f"notebooks/{path.stem}.md" in pages


KEPT = [path for path in NOTEBOOKS if cells(path)[0]["execution_count"]]  # with their outputs


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_ran(path):
    """In order, with outputs and no error, small, and with nothing of the machine it ran on."""
    assert path.stat().st_size < 200_000
    counts = [cell["execution_count"] for cell in cells(path)]
    assert counts == list(range(1, len(counts) + 1))
    kinds = [output["output_type"] for cell in cells(path) for output in cell["outputs"]]
    assert "error" not in kinds and len(kinds) >= 5
    assert any("image/png" in o.get("data", {}) for cell in cells(path) for o in cell["outputs"])
    said = [o.get("text", "") for cell in cells(path) for o in cell["outputs"]]
    text = "".join("".join(part) for part in said)
    assert not re.search(r"/(home|root|work|tmp|usr)/|WARNING|Warning|\x1b", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [nightly(path) if "pretrain" in path.stem else path for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    """In a process of its own, on fewer texts and steps."""
    nbformat = pytest.importorskip("nbformat")
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package)
    minilm()  # skips without the package
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # compiled as users do
    notebook, replaced = nbformat.read(path, 4), set()
    for cell in notebook.cells:
        for old, new in SMALL.items():
            replaced |= {old} if old in cell.source else set()
            cell.source = cell.source.replace(old, new)
    assert len(replaced) == {"contextual-vectors": 1, "pretrain-and-finetune": 2}[path.stem]
    execute(notebook, tmp_path)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type == "error"]


def test_a_page_has_the_outputs_of_its_notebook(tmp_path):
    """Texts as they are, code, what it printed, and pictures within the page."""
    from importlib import util

    spec = util.spec_from_file_location("pages", ROOT / "docs" / "notebooks" / "pages.py")
    pages = util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    output = {"output_type": "stream", "name": "stdout", "text": ["2\n", "3\n"]}
    picture = {"output_type": "display_data", "data": {"image/png": "AAAA\n", "text/plain": "<F>"}}
    whole = [
        {"cell_type": "markdown", "source": ["# A title\n", "and [a link](../map.md)"]},
        {"cell_type": "code", "source": "print(2)\nprint(3)", "outputs": [output, picture]},
        {"cell_type": "code", "source": "%%sh\nfirth runs", "outputs": []},
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": whole}))
    assert pages.to_markdown(tmp_path / "a.ipynb").split("\n\n") == [
        "# A title\nand [a link](../map.md)",
        "```python\nprint(2)\nprint(3)\n```",
        "```text\n2\n3\n```",
        "![what this drew](data:image/png;base64,AAAA)",
        "```sh\nfirth runs\n```\n",
    ]
