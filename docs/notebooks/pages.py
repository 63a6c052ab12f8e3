"""Notebooks as pages of the documentation: mkdocs calls `on_files` (mkdocs.yml, hooks).

A notebook becomes Markdown with its outputs, so that its page looks like the others and loads
nothing from elsewhere.
"""

import json
from pathlib import Path


def on_files(files, config):
    """Replace every notebook among the files by a page of the same name."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        text = to_markdown(Path(file.abs_src_path))
        files.append(File.generated(config, page, content=text))
    return files


def to_markdown(path: Path) -> str:
    """The Markdown of a notebook: texts, code, and what the code printed and drew."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        magic, _, rest = source.partition("\n")
        shell = magic == "%%sh"
        parts.append(block("sh" if shell else "python", rest if shell else source))
        parts += [shown(output) for output in cell["outputs"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict) -> str:
    """One output: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).replace("\n", "")
        return f"![what this drew](data:image/png;base64,{picture})"
    text = "".join(output.get("text") or data.get("text/plain", ""))
    return block("text", text.strip("\n")) if text.strip() else ""


def block(kind: str, text: str) -> str:
    """A fenced block."""
    return f"```{kind}\n{text}\n```"
