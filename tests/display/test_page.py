"""The parts of a page: escaped, of itself alone, and with the numbers that they are given."""

import html.parser

import pytest
from matplotlib.figure import Figure

from firth.display import page

NASTY = '<script>alert("x")</script> & more'


class Reader(html.parser.HTMLParser):
    """The tags of a page with their attributes, its text, and the tags that were not closed."""

    VOID = ("meta", "link", "br", "img")

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def cells(source):
    """Rows of the texts of a table's cells."""
    rows, inside = [], html.parser.HTMLParser()
    inside.handle_starttag = lambda tag, _: (
        rows.append([]) if tag == "tr" else rows[-1].append("") if tag in ("td", "th") else None
    )
    inside.handle_data = lambda data: rows[-1].__setitem__(-1, rows[-1][-1] + data)
    inside.feed(source)
    return rows


@pytest.mark.parametrize(
    "part",
    [
        page.paragraph(NASTY),
        page.table([NASTY], [[NASTY]]),
        page.bars([NASTY, "n"], [[NASTY, 1]], at=1),
        page.heat_map(NASTY, [NASTY], [[1]]),
        page.section(NASTY, page.folded(NASTY, page.preformatted(NASTY))),
        page.page(NASTY, []),
    ],
)
def test_text_is_escaped(part):
    read = Reader(part)
    assert "script" not in [tag for tag, _ in read.tags] and not read.open
    assert NASTY in "".join(read.text) or NASTY in " ".join(read.text)


def test_numbers_are_as_people_write_them():
    rows = [["a", 12345, 0.123456, None], ["b", 1, float("nan"), 23456.7]]
    assert cells(page.table(["x", "n", "f", "m"], rows)) == [
        ["x", "n", "f", "m"],
        ["a", "12,345", "0.1235", ""],
        ["b", "1", "", "23,457"],
    ]
    kinds = [
        attributes.get("class")
        for tag, attributes in Reader(page.table(["x", "n"], [["a", 1]])).tags
        if tag == "td"
    ]
    assert kinds == [None, "number"]


def test_bars_are_as_long_as_their_numbers():
    part = page.bars(["what", "n", "more"], [["a", 50, 1.5], ["b", 200, 2.5]], at=1)
    assert cells(part)[1:] == [["a", "50", "", "1.5"], ["b", "200", "", "2.5"]]
    widths = [a["style"] for tag, a in Reader(part).tags if tag == "div" and "style" in a]
    assert widths == ["width: 25.0%", "width: 100.0%"]
    assert cells(page.bars(["what", "n"], [["a", 0]], at=1))[1] == ["a", "0", ""]


def test_the_more_of_its_row_a_cell_has_the_darker_it_is():
    part = page.heat_map("x", ["a", "b"], [[3, 1], [0, 0]])
    assert cells(part) == [["x", "a", "b"], ["a", "3", "1"], ["b", "0", "0"]]
    shades = [a["style"].rpartition(",")[2] for tag, a in Reader(part).tags if tag == "td"]
    assert shades == [" 0.56)", " 0.19)", " 0.00)", " 0.00)"]


def test_a_picture_is_within_the_page_and_names_no_address(tmp_path):
    drawn = Figure()
    drawn.subplots().plot([1, 2], [3, 4])
    part = page.picture(drawn)
    assert part == page.picture(drawn) and "<svg" in part and "<metadata" not in part
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    assert 'src="data:image/png;base64,iVBORw=="' in page.image(tmp_path / "a.png", "words")
    assert page.image(tmp_path / "b.png", "<b>") == "<i>&lt;b&gt;</i>"
    assert page.image(tmp_path / "a.svg", "words") == "<i>words</i>"


def test_long_texts_are_shortened():
    assert page.shortened("a" * 1500) == "a" * 1500
    assert page.shortened("a" * 1501 + "b" * 1000) == "a" * 1500 + " ... (1,001 more characters)"


def test_a_page_asks_for_nothing_and_is_as_wide_as_the_screen():
    read = Reader(page.page("t", ["<p>x</p>"]))
    assert (
        "meta",
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
    ) in read.tags
    for _, attributes in read.tags:
        for name in ("src", "href"):
            assert attributes.get(name, "data:").startswith("data:")
    policies = [a.get("content") for _, a in read.tags if a.get("http-equiv")]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert "@import" not in page.STYLE and "url(" not in page.STYLE
