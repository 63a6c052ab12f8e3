"""Run the notebooks of the documentation.

`python tests/helpers/notebooks.py [NAME ...]` runs them whole, in a folder of their own, and keeps
their outputs in the files: do it after a change of one.
"""

import os
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIMEOUT = 3600  # seconds for a cell


def execute(notebook, folder: Path):
    """Run all cells in `folder`, by this Python, on the CPU; their outputs are then in them."""
    import nbclient

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = nbclient.NotebookClient(
        notebook,
        timeout=TIMEOUT,
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,
    )
    client.km = client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable  # whatever Python a kernel is installed for
    client.execute()


def keep(path: Path):
    """Run a notebook and write it back, without times, versions and the folder that it ran in."""
    import nbformat

    notebook = nbformat.read(path, 4)
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "text" in output:
                output.text = output.text.replace(f"{folder}/", "")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    for path in NOTEBOOKS:
        if path.stem in sys.argv[1:] or not sys.argv[1:]:
            keep(path)
            print(path)
