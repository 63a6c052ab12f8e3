"""`firth generate`: what it prints, reads, writes and refuses."""

import json
import re

import pytest

from firth import cli


def test_the_command_shows_the_text(gpt2, printed):
    directory, encoder = gpt2
    options = ("--model", directory, "--tokens=20", "--top-k=9", "--seed=3")
    (one,) = encoder.generate("the cat", max_tokens=20, top_k=9, seed=3)
    assert printed("generate", *options, "--prompt", "the cat") == f"the cat{one.text}\n"
    two = encoder.generate("the cat", max_tokens=20, top_k=9, seed=3, samples=2)
    shown = printed("generate", *options, "--prompt", "the cat", "--samples=2")
    blocks = [f"== the prompt, sample {s.sample}\nthe cat{s.text}\n" for s in two]
    assert shown == "".join(blocks)
    stops = [one.text[4:6], "@@"]
    (cut,) = encoder.generate("the cat", max_tokens=20, top_k=9, seed=3, stop=stops)
    shown = printed("generate", *options, "--prompt", "the cat", "--stop", *stops)
    assert shown == f"the cat{cut.text}\n" and cut.reason == "stop"


def test_the_command_reads_and_writes_files(gpt2, tmp_path, printed, stdin):
    directory, encoder = gpt2
    content = "the cat\nthe\tdog\tran\n\n"
    (tmp_path / "in.txt").write_text(content)
    options = ("--model", directory, "--tokens=9", "--greedy", "--output", tmp_path / "out.jsonl")
    assert printed("generate", *options, "--input", tmp_path / "in.txt") == ""
    text = (tmp_path / "out.jsonl").read_text()
    prompts = ["the cat", "the\tdog\tran", ""]
    expected = encoder.generate(prompts, max_tokens=9, greedy=True)
    for line, one in zip(text.splitlines(), expected, strict=True):
        assert json.loads(line) == dict(
            prompt=prompts[one.row],
            row=one.row,
            sample=0,
            text=one.text,
            ids=list(one.ids),
            reason="length",
        )
    stdin(content.encode())
    printed("generate", *options, "--input", "-")
    assert (tmp_path / "out.jsonl").read_text() == text


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", (), r"in\.txt is empty; expected one prompt a line"),
        (
            b"the\n" + b"the " * 99 + b"\n",
            (),
            r"in\.txt:2 has \d+ tokens and the model 90 positions",
        ),
        (b"the\nsm\xf8r\n", (), r"in\.txt:2: not UTF-8 at byte 6 .*errors=replace"),
        (b"the\n", ("--prompt", "the"), "give either --prompt or --input"),
        (b"the\n", ("--input=gone",), "cannot read gone: No such file"),
        (b"the\n", ("--model=gone",), "gone does not exist"),
        (b"the\n", ("--temperature=0",), "temperature=0.0: expected a number above 0"),
        (b"the\n", ("--tokens=90",), r"in\.txt:1 has 1 tokens .* so 89 can follow, not 90"),
        (b"the\n", ("--greedy", "--samples=2"), "greedy takes the one likeliest token"),
        (
            b"the\n",
            ("--output", "/gone/out"),
            "--output /gone/out: expected a file in a directory that exists",
        ),
        (None, ("--prompt", "the \udce9"), "--prompt is not UTF-8"),
        (None, ("--prompt", "the", "--stop", ""), "none of them empty"),
    ],
)
def test_bad_input_is_named_and_nothing_is_printed(
    gpt2, tmp_path, capsys, content, options, message
):
    if content is not None:
        (tmp_path / "in.txt").write_bytes(content)
        options = ("--input", str(tmp_path / "in.txt"), *options)
    assert cli.main(["generate", "--model", str(gpt2[0]), "--tokens=4", *options]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(f"firth generate: error: .*{message}.*\n", printed.err)
    assert not printed.out
