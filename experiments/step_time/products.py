"""What the matrix products of a training step alone allow on this machine.

    python experiments/step_time/products.py [--recipe bert.py:mini] [--batch 32] [--length 128]

Takes every product of the compiled step, loops multiplied out, runs each distinct one as an XLA
program of its own on the same threads, operands in the order of axes that they have in the step,
and adds up the times. Prints the sum, the step's time, their ratio, and the longest products. Each
time is the least of some rounds, which other work on the machine disturbs less than their median.
"""

import argparse
import json
import math
import re
from collections import Counter
from typing import NamedTuple

from bench import THREADS, program_of
from timing import least_seconds

from firth.distributed.allocator import keep_freed_memory

NAME = r"%?([\w.\-]+)"
COMPUTATION = re.compile(rf"^(ENTRY )?{NAME} \(.*{{$")
INSTRUCTION = re.compile(rf"^\s+(?:ROOT )?{NAME} = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
CALLED = re.compile(rf"(?:calls|to_apply|body|true_computation|false_computation)={NAME}")
BRANCHES = re.compile(r"branch_computations=\{(.*?)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
ARRAY = re.compile(r"(\w+)\[([\d,]*)\](?:\{([\d,]*))?")
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "s32": "int32"}


class Product(NamedTuple):
    """A dot_general: dtype, shapes of both sides as they lie in memory, and its dimensions."""

    dtype: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    contracted: tuple[tuple[int, ...], tuple[int, ...]]
    batch: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many products, rows, summed places and columns."""
        count = math.prod(self.left[i] for i in self.batch[0])
        depth = math.prod(self.left[i] for i in self.contracted[0])
        rows = math.prod(self.left) // (count * depth)
        return count, rows, depth, math.prod(self.right) // (count * depth)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.sizes)


def products_of(text: str) -> Counter:
    """{product: how often the program runs it}, from the text of a compiled program (HLO).

    A branch of a condition counts as one that is taken.
    """
    lines, entry = {}, None
    for line in text.splitlines():
        if header := COMPUTATION.match(line):
            name = header[2]
            lines[name], entry = [], name if header[1] else entry
        elif (found := INSTRUCTION.match(line)) and lines:
            lines[name].append(found)
    totals = Counter()

    def count(computation, times):
        shapes = {found[1]: found[2] for found in lines[computation]}
        for found in lines[computation]:
            _, _, op, rest = found.groups()
            if op == "dot":
                totals[_product(rest, shapes)] += times
            trips = int(TRIPS.search(rest)[1]) if op == "while" and TRIPS.search(rest) else 1
            called = CALLED.findall(rest)
            for group in BRANCHES.findall(rest):
                called += [each.strip().lstrip("%") for each in group.split(",")]
            for other in called:
                count(other, times * trips)

    count(entry, 1)
    return totals


def _product(rest: str, shapes: dict[str, str]) -> Product:
    """The product of a dot instruction, from what follows its opening bracket."""
    names = [each.split()[-1].lstrip("%") for each in rest.split(")")[0].split(", ")]
    sides, orders = [], []
    for name in names:
        dtype, dims, layout = ARRAY.match(shapes[name]).groups()
        shape = [int(size) for size in dims.split(",")]
        order = [int(axis) for axis in layout.split(",")][::-1]  # the slowest first
        sides.append(tuple(shape[axis] for axis in order))
        orders.append(order)

    def axes(kind):
        found = [re.search(rf"{side}_{kind}_dims=\{{([\d,]+)\}}", rest) for side in ("lhs", "rhs")]
        listed = ([int(axis) for axis in each[1].split(",")] if each else () for each in found)
        pairs = zip(listed, orders, strict=True)
        return tuple(tuple(order.index(axis) for axis in each) for each, order in pairs)

    return Product(DTYPES[dtype], *sides, axes("contracting"), axes("batch"))


def seconds_of(product: Product, rounds: int) -> float:
    """The least seconds of the product alone, its operands random."""
    import jax

    keys = jax.random.split(jax.random.key(0))
    sides = [
        jax.random.normal(key, shape).astype(product.dtype)
        for key, shape in zip(keys, (product.left, product.right), strict=True)
    ]
    dimensions = (product.contracted, product.batch)
    run = jax.jit(lambda left, right: jax.lax.dot_general(left, right, dimensions))
    return least_seconds(lambda: run(*sides).block_until_ready(), rounds)


def step_and_products(recipe, batch, length, vocab):
    """A function that runs one step, and the products of its program."""
    import jax
    from bench import described, rows_of

    config, spec, objective = described(recipe, length, vocab)
    config.accumulate = 1
    program = program_of(config, spec, objective, batch)
    rows = jax.device_put(rows_of(batch, length, vocab))
    holder = [program.init()]
    compiled = program.step.lower(holder[0], rows).compile()

    def run():
        holder[0], measured, _ = compiled(holder[0], rows)
        return float(measured["loss"][0])

    return run, products_of(compiled.as_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--recipe", default="bert.py:mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--top", type=int, default=8, help="how many products to print")
    args = parser.parse_args()
    keep_freed_memory()
    run, products = step_and_products(args.recipe, args.batch, args.length, args.vocab)
    step = least_seconds(run, args.rounds)
    alone = {product: seconds_of(product, args.rounds) for product in products}
    total = sum(alone[product] * times for product, times in products.items())
    flops = sum(product.flops * times for product, times in products.items())
    print(f"{args.recipe}, {args.batch} x {args.length}, {args.vocab:,} words, {THREADS} threads")
    print(
        f"step {step:.4f} s, its {sum(products.values())} products alone {total:.4f} s "
        f"({flops / 1e9:.1f} GFLOP at {flops / total / 1e9:.0f} GFLOP/s): {total / step:.1%}"
    )
    print(f"{'runs':>5} {'ms each':>8} {'GFLOP/s':>8}  left, right; summed axes; axes of a batch")
    longest = sorted(products, key=lambda each: -alone[each] * products[each])
    for product in longest[: args.top]:
        rate = product.flops / alone[product] / 1e9
        print(
            f"{products[product]:5} {alone[product] * 1e3:8.2f} {rate:8.0f}  "
            f"{product.left} {product.right}; {product.contracted}; {product.batch}"
        )
    print(json.dumps({"step": round(step, 4), "products": round(total, 4)}))


if __name__ == "__main__":
    main()
