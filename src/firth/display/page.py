"""The parts of an HTML page that needs nothing but itself: tables, bars, pictures, sections.

All text is escaped. Parts are strings of HTML; `page` puts them together. The page has no script
and asks for no other file, follows the light or dark setting of the reader, and is as wide as the
screen: what is wider scrolls in a box of its own.
"""

import base64
import html
import io
import itertools
import math
from collections.abc import Iterable, Sequence

STYLE = """
:root {
  color-scheme: light dark;
  --ink: light-dark(#1d2129, #e4e6eb); --soft: light-dark(#5b6270, #a2a8b4);
  --line: light-dark(#d9dce3, #3a3f4a); --back: light-dark(#ffffff, #16181d);
  --box: light-dark(#f5f6f8, #1f2229); --bar: light-dark(#0072b2, #56a8dd);
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1rem; max-width: 62rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere;
}
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); }
.wide { overflow-x: auto; max-width: 100%; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .3rem 0; }
th, td {
  padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line);
}
th { color: var(--soft); font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.cell { text-align: right; padding: .25rem .5rem; }
td.bar { min-width: 7rem; width: 40%; }
td.bar div { background: var(--bar); height: .8rem; border-radius: 2px; margin-top: .35rem; }
.wrong { background: var(--box); border-radius: 6px; padding: .6rem .8rem; margin: .6rem 0; }
.wrong p { margin: .15rem 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; }
pre, code { font: 13px/1.45 ui-monospace, monospace; }
pre { background: var(--box); padding: .7rem; border-radius: 6px; overflow-x: auto; }
.picture { display: block; background: #ffffff; border-radius: 6px; overflow: hidden; }
.picture svg { width: 100%; height: auto; display: block; }
.picture img { max-width: 100%; display: block; }
@media (max-width: 32rem) {
  table { font-size: .85rem; } th, td { padding-right: .5rem; } td.bar { min-width: 3.5rem; }
}
""".strip()
# A browser loads nothing but the pictures within the page, and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
COLOUR = "0, 114, 178"  # of a heat map: Okabe and Ito's blue
SHOWN = 1500  # characters of a text


def text(value) -> str:
    """A value as escaped text; numbers as people write them."""
    if isinstance(value, bool) or value is None:
        return html.escape("" if value is None else str(value))
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"
    return html.escape(str(value))


def paragraph(*lines: str, soft: bool = False) -> str:
    """Lines of text, each in a line of its own."""
    return f"<p{' class=soft' if soft else ''}>{'<br>'.join(map(text, lines))}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence]) -> str:
    """A table; columns of numbers alone are to the right."""
    rows = [list(row) for row in rows]
    columns = itertools.zip_longest(*rows) if rows else [[] for _ in head]
    kinds = [
        ' class="number"' if any(map(_is_number, column)) and _are_numbers(column) else ""
        for column in columns
    ]
    lines = [_row("th", head, kinds), *(_row("td", row, kinds) for row in rows)]
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _row(tag: str, cells: Sequence, kinds: Sequence[str]) -> str:
    cells = zip(cells, kinds, strict=True)
    return f"<tr>{''.join(f'<{tag}{kind}>{text(cell)}</{tag}>' for cell, kind in cells)}</tr>"


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(column: Sequence) -> bool:
    return all(value is None or _is_number(value) for value in column)


def bars(head: Sequence[str], rows: Iterable[Sequence], at: int) -> str:
    """A table whose column `at`, of numbers from 0, has a bar beside each number."""
    rows = [list(row) for row in rows]
    most = max((row[at] for row in rows), default=0) or 1
    kinds = [' class="number"'] * len(head)
    kinds[0] = ""
    lines = [
        _row("th", [*head[: at + 1], "", *head[at + 1 :]], [*kinds[: at + 1], "", *kinds[at + 1 :]])
    ]
    for row in rows:
        cells = [f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)]
        bar = f'<td class="bar"><div style="width: {100 * row[at] / most:.1f}%"></div></td>'
        lines.append(f"<tr>{''.join([*cells[: at + 1], bar, *cells[at + 1 :]])}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def heat_map(corner: str, labels: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A square table of counts; the more of its row a cell has, the darker it is."""
    lines = [_row("th", [corner, *labels], [""] + [' class="number"'] * len(labels))]
    for label, row in zip(labels, counts, strict=True):
        total = sum(row) or 1
        cells = [
            f'<td class="cell" style="background: rgba({COLOUR}, {0.75 * count / total:.2f})">'
            f"{int(count):,}</td>"
            for count in row
        ]
        lines.append(f"<tr><th>{text(label)}</th>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def picture(figure) -> str:
    """A matplotlib figure as SVG within the page."""
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "firth", "svg.fonttype": "path"}):
        figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format")))
    svg = drawn.getvalue()
    svg = svg[svg.index("<svg") :]
    start, end = svg.find("<metadata>"), svg.find("</metadata>")
    if start >= 0:  # addresses of vocabularies, which nobody here reads
        svg = svg[:start] + svg[end + len("</metadata>") :]
    return f'<div class="picture">{svg}</div>'


def image(path, words: str) -> str:
    """A PNG file within the page; its words alone where there is no such file."""
    if path.suffix.lower() != ".png" or not path.is_file():
        return f"<i>{text(words)}</i>"
    data = base64.b64encode(path.read_bytes()).decode()
    source = f"data:image/png;base64,{data}"
    return f'<span class="picture"><img alt="{text(words)}" src="{source}"></span>'


def side_by_side(parts: Iterable[str]) -> str:
    """Parts in two columns; in one where the screen is narrow."""
    return f'<div class="pair">{"".join(parts)}</div>'


def shortened(value: str) -> str:
    """A text; of more than SHOWN characters its beginning, and how much is missing."""
    missing = len(value) - SHOWN
    return value if missing <= 0 else f"{value[:SHOWN]} ... ({missing:,} more characters)"


def folded(title: str, *parts: str) -> str:
    """Parts that open when the reader asks for them."""
    return f"<details><summary>{text(title)}</summary>{''.join(parts)}</details>"


def section(title: str, *parts: str) -> str:
    """Parts under a title."""
    return f"<section><h2>{text(title)}</h2>{''.join(parts)}</section>"


def preformatted(value: str) -> str:
    """Text as it is, in columns."""
    return f"<pre>{html.escape(value)}</pre>"


def page(title: str, parts: Iterable[str]) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # else a browser asks the disk for one
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{text(title)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{text(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )
