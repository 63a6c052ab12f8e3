"""Floating-point operations of a run: the sum of its matrix products, part by part.

The objective names the products (`Objective.products`), heads and bodies their sizes
(`firth.layers.products`). `recomputed` counts the work of rematerialisation apart, since the
utilisation (MFU) is by definition that of the model's own operations. Parameters that
`optimizer.freeze` names count as if they were trained.
"""

from collections.abc import Iterator

from firth.layers.products import LOCAL, MLP, PRODUCTS, PROJECTIONS, Product

RECOMPUTED = {  # by the policies of `layers.transformer.REMAT_POLICIES`
    "none": (),
    "all_dots": (),
    "dots": (PRODUCTS, LOCAL),
    "full": (PROJECTIONS, PRODUCTS, LOCAL, MLP),
}


def update_flops(outline) -> dict[str, int]:
    """FLOPs of one update, forward and backward, {part: number}; their sum is the model's FLOPs.

    The parts of a second model are named after its role, "generator MLP".
    """
    parts = {}
    for product in products(outline):
        name = f"{product.owner} {product.part}".strip()
        parts[name] = parts.get(name, 0) + product.forward * (1 + product.backward)
    return parts


def recomputed(outline) -> int:
    """FLOPs of the forward pass that one update repeats (`model.remat`)."""
    again = RECOMPUTED[outline.model.encoder.config.remat]
    return sum(p.forward for p in products(outline) if p.part in again and p.backward and p.needed)


def products(outline) -> Iterator[Product]:
    """All matrix products of one update of an outline."""
    rows, length = outline.batch["tokens"].shape
    shape = dict(rows=rows, length=length, micro=outline.config.accumulate)
    yield from outline.objective.products(outline.model, **shape)
