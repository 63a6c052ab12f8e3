"""Every pretraining recipe, compiled for the pod of its paper or its closest TPU of today.

    python experiments/pods/run.py                      # goes on where results.jsonl ends
    python experiments/pods/run.py --only bert.py:large --table
    python experiments/pods/run.py --stale              # also cells of another code or compiler

Needs libtpu (pip install 'firth[tpu]') and no TPU. A line of results.jsonl is a cell: a recipe, a
slice, fields that were set, and the report of `firth.planning.compiler.compiled`. `commit` is the
newest one that changed Firth or its recipes. The last line of a cell counts.
"""

import argparse
import importlib.metadata
import json
import subprocess
import time
from pathlib import Path

import jax

from firth import recipe
from firth.errors import FirthError
from firth.planning.compiler import compiled

RESULTS = Path(__file__).parent / "results.jsonl"

UNROLLED = {"model.scan": False}

# (recipe, slice, {field: value}); what the paper used is in README.md. The cells whose kernels are
# the newest come first.
PAPERS = (
    ("xlnet.py:base", "v5e:4x4", {}),
    ("modernbert.py:base", "v6e:16x16", UNROLLED),
    ("gpt2.py:base", "v5e:8x8", {}),
    ("gpt.py:base", "v5e:2x4", {}),
    ("transformer_xl.py:wt103", "v5e:2x2", {}),
    ("distilbert.py:base", "v5e:2x4", {"accumulate": 20}),
    ("albert.py:large", "v5e:16x16", {}),
    ("albert.py:xlarge", "v5p:4x4x8", {}),
    ("albert.py:xxlarge", "v5p:8x8x8", {}),
    ("xlnet.py:large", "v5p:8x8x8", {}),
    ("modernbert.py:large", "v6e:16x16", UNROLLED),
    ("albert.py:base", "v5e:8x8", {}),
    ("bert.py:base", "v5e:4x4", {}),
    ("bert.py:large", "v5e:8x8", {}),
    ("bert.py:base,length=512", "v5e:4x4", {}),
    ("bert.py:large,length=512", "v5e:8x8", {}),
    ("electra.py:small", "v5e:1x1", {}),
    ("electra.py:base", "v5e:4x4", {}),
    ("electra.py:large", "v5p:4x4x4", {}),
    ("roberta.py:base", "v5p:8x8x8", {}),
    ("roberta.py:large", "v5p:8x8x8", {}),
)
# Weak scaling of BERT-large with 16 rows of 512 tokens on every chip, every layer by itself: a loop
# over layers copies what it keeps for the backward pass, and sums no gradient before its end. Sums
# beside the backward pass are for v5e alone; of v5p, those of half the bytes, too.
LARGE = "bert.py:large,length=512"
SCALING = tuple(
    (LARGE, where, {"batch_size": 16 * chips} | UNROLLED | changes)
    for where, chips, changes in (
        ("v5e:1x1", 1, {}),
        ("v5e:2x4", 8, {"reduce_async": True}),
        ("v5e:16x16", 256, {"reduce_async": True}),
        ("v5p:1x1x1", 1, {}),
        ("v5p:2x2x2", 8, {}),
        ("v5p:4x8x8", 256, {}),
        ("v5p:2x2x2", 8, {"reduce_dtype": "bfloat16"}),
        ("v5p:4x8x8", 256, {"reduce_dtype": "bfloat16"}),
    )
)
# BERT-base at 16 rows of 512 tokens a chip, on what one can rent.
SLICES = tuple(
    ("bert.py:base,length=512", where, {"batch_size": 16 * chips})
    for where, chips in (
        ("v4:2x2x1", 4),
        ("v5e:16x16", 256),
        ("v5p:8x8x8", 512),
        ("v6e:16x16", 256),
    )
)
# Base bodies with kernels of their own, on one chip, every layer by itself.
KERNELS = tuple(
    (name, "v5e:1x1", {"batch_size": rows} | UNROLLED)
    for name, rows in (("modernbert.py:base", 8), ("xlnet.py:base", 16), ("gpt2.py:base", 8))
)
# The lineage: the networks before BERT, on one chip, as their recipes have them.
LINEAGE = tuple(
    (name, "v5e:1x1", {"steps": 100_000} if name.startswith("ulmfit") else {})  # or of a store
    for name in (
        "lstm.py:small",
        "lstm.py:medium",
        "rnn.py:small",
        "feedforward.py:small",
        "awd_lstm.py:medium",
        "melis.py:10m_d1",
        "rhn.py:medium",
        "char_lstm.py:small",
        "char_cnn_lstm.py:small",
        "elmo.py:small",
        "elmo.py:original",
        "transformer_xl.py:ptb",
        "ulmfit.py:pretrain",
    )
)
CELLS = (*KERNELS, *LINEAGE, *PAPERS[:5], *SLICES, *PAPERS[5:], *SCALING)


def key(cell) -> str:
    """What names a cell in the results."""
    name, where, changes = cell
    return " ".join([name, where, *(f"{field}={value}" for field, value in changes.items())])


def done() -> dict[str, dict]:
    """The cells that have been compiled."""
    if not RESULTS.exists():
        return {}
    return {line["cell"]: line for line in map(json.loads, RESULTS.read_text().splitlines())}


def code() -> str:
    """The newest commit that changed Firth or its recipes."""
    log = ["git", "log", "-1", "--format=%h", "--", "src", "configs"]
    found = subprocess.run(log, capture_output=True, text=True, check=True, cwd=RESULTS.parents[2])
    return found.stdout.strip()


def compile_cell(cell) -> dict:
    """One cell; what is bad input is its result."""
    name, where, changes = cell
    config = recipe.with_fields(recipe.read_recipe(name), changes)
    try:
        return compiled.report(config, [where], given=changes)[where]
    except FirthError as error:
        return {"error": str(error)}


def table(results: dict[str, dict]) -> str:
    """The results in Markdown."""
    rows = [
        "| recipe, slice | rows a chip | memory | MFU predicted (roofline) | bound | ms a step | "
        "run: hours, USD | CPU s to compile | commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in results.items():
        if "error" in one:
            rows.append(f"| {name} | {one['error']} ||||||| {one['commit']} |")
            continue
        with_, kept = "", one
        if not one["fits"]:
            kept = one.get("helps")
            if not kept:
                rows.append(
                    f"| {name} | {one['rows_a_chip']:g} | {one['over'] / 2**30:.1f} GiB too "
                    f"much ||||| {one['compile_cpu_seconds']} | {one['commit']} |"
                )
                continue
            with_ = ", with " + ", ".join(f"{k}={v}" for k, v in kept["changes"].items())
        memory, seconds = kept["memory"], kept["seconds"]
        rows.append(
            f"| {name}{with_} | {kept['rows_a_chip']:g} x {kept['length']} | "
            f"{memory['total'] / 2**30:.1f} of {memory['hbm'] / 2**30:g} GiB | "
            f"{kept['mfu']:.1%} ({kept['mfu_at_most']:.1%}) | {kept['bound']} | "
            f"{1e3 * seconds['step']:.1f} | {kept['hours']:,.1f}, {kept['usd']:,.0f} | "
            f"{kept['compile_cpu_seconds']:.0f} | {one['commit']} |"
        )
    return "\n".join(rows)


def main():
    """Compile what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="cells whose name holds this")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    parser.add_argument("--stale", action="store_true", help="again, where code or libtpu changed")
    args = parser.parse_args()
    cells = [cell for cell in CELLS if not args.only or args.only in key(cell)]
    jax.config.update("jax_platforms", "cpu")
    made_by = {"commit": code(), "libtpu": importlib.metadata.version("libtpu")}
    for cell in [] if args.table else cells:
        last = done().get(key(cell))
        if last and not (args.stale and any(last.get(k) != v for k, v in made_by.items())):
            continue
        started = time.strftime("%Y-%m-%d %H:%M")
        line = {"cell": key(cell), "at": started, **made_by, **compile_cell(cell)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            "\n".join(["", *compiled.describe(cell[0], cell[1], line)])
            if "error" not in line
            else f"{key(cell)}: {line['error']}",
            flush=True,
        )
    newest = done()
    print(table({key(cell): newest[key(cell)] for cell in cells if key(cell) in newest}))


if __name__ == "__main__":
    main()
