"""What every family shares: the representation interface and an encoder with its heads."""

import dataclasses
import importlib

import flax.linen as nn
import flax.struct
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from firth.errors import FirthError
from firth.layers.heads import ClassifierHead, MaskedLMHead
from firth.models import FAMILIES


@flax.struct.dataclass
class Encoded:
    """What an encoder returns. N layers, B batch, L length, D hidden size, H heads.

    last: [B, L, D], the last layer (equal to `hidden[-1]`).
    hidden: [N+1, B, L, D], the embeddings and every layer.
    pooled: [B, D], or None where the family has no pooler.
    attentions: probabilities [N, B, H, L, L], or None unless they were asked for.
    """

    last: jax.Array
    hidden: jax.Array
    pooled: jax.Array | None = None
    attentions: jax.Array | None = None


class Model(nn.Module):
    """An encoder and the heads named in `heads`: parameters under `encoder` and each head's name.

    Objectives, tasks, extraction and exchange see only this interface.
    """

    encoder: nn.Module
    heads: tuple[str, ...] = ()
    num_labels: int = 2
    classifier_dropout: float = 0.1

    def setup(self):
        """Name the parts."""
        c = self.encoder.config
        if "mlm" in self.heads:
            self.mlm_head = MaskedLMHead(c, name="mlm")
        if "nsp" in self.heads:
            self.nsp_head = ClassifierHead(c, 2, name="nsp")
        if "classifier" in self.heads:
            self.classifier_head = ClassifierHead(
                c, self.num_labels, self.classifier_dropout, name="classifier"
            )

    def __call__(self, tokens_BL, segments_BL=None, mask_BL=None, *, attentions=False):
        """Encode without dropout and apply every head; returns (Encoded, {head: logits})."""
        out = self.encoder(tokens_BL, segments_BL, mask_BL, attentions=attentions)
        logits = {}
        if "mlm" in self.heads:
            logits["mlm"] = self.mlm(out.last)
        if "nsp" in self.heads:
            logits["nsp"] = self.nsp(out.pooled)
        if "classifier" in self.heads:
            logits["classifier"] = self.classify(out.pooled)
        return out, logits

    def mlm(self, hidden_BMD):
        """Vocabulary logits float32 [B, M, V] at gathered positions."""
        return self.mlm_head(hidden_BMD, self.encoder.decode)

    def nsp(self, pooled_BD):
        """Logits float32 [B, 2]: 0 the second text follows the first, 1 it was drawn at random."""
        return self.nsp_head(pooled_BD)

    def classify(self, pooled_BD, *, train=False):
        """Logits float32 [B, C]."""
        return self.classifier_head(pooled_BD, train=train)


def family(name: str):
    """The module of a family: `Config`, `Encoder`, `size` and its table of published names."""
    if name not in FAMILIES:
        raise FirthError(f"model.family={name!r} is unknown; Firth knows {', '.join(FAMILIES)}")
    return importlib.import_module(FAMILIES[name])


def create(spec, heads=(), num_labels: int = 2) -> Model:
    """Build a `Model` from a config's `model` section.

    `spec` maps `family` and the fields of that family's `Config`; `classifier_dropout` may be
    among them. Raises FirthError for an unknown family or field, for a rate out of range and for a
    head on the pooled output of a model that has none.
    """
    fields = dict(spec)
    module = family(fields.pop("family", None))
    for name in ("dropout", "attention_dropout", "classifier_dropout"):
        if not 0 <= fields.get(name, 0.0) < 1:
            raise FirthError(f"model.{name}={fields[name]} should lie in [0, 1)")
    classifier_dropout = fields.pop("classifier_dropout", 0.1)
    known = {f.name for f in dataclasses.fields(module.Config)}
    if unknown := sorted(set(fields) - known):
        raise FirthError(
            f"model has no field {', '.join(unknown)}; the fields are {', '.join(sorted(known))}"
        )
    for head in heads:
        if head in ("nsp", "classifier") and not fields.get("pooler", True):
            raise FirthError(f"head {head!r} needs model.pooler, which this model lacks")
    encoder = module.Encoder(module.Config(**fields))
    return Model(encoder, tuple(heads), num_labels, classifier_dropout)


def parameter_count(params) -> int:
    """Number of scalars in a tree of arrays or shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def to_layout(params: dict, scan: bool) -> dict:
    """Nested parameters with layers stacked under `layers` (scan) or as `layer_0`, `layer_1` ...

    Both layouts hold the same numbers; files always have the unrolled one.
    """
    names = [name for name in params if name.startswith("layer_")]
    if scan and names:
        ordered = [params[f"layer_{i}"] for i in range(len(names))]
        rest = {name: value for name, value in params.items() if name not in names}
        return rest | {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *ordered)}
    if not scan and "layers" in params:
        rest = {name: value for name, value in params.items() if name != "layers"}
        count = len(jax.tree.leaves(params["layers"])[0])
        return rest | {
            f"layer_{i}": jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"])
            for i in range(count)
        }
    return {
        name: to_layout(value, scan) if isinstance(value, dict) else value
        for name, value in params.items()
    }


def overlay(params: dict, loaded: dict, source: str) -> tuple[dict, list[str]]:
    """Lay loaded parameters over fresh ones; returns them and the names that stayed fresh.

    Whole heads may be missing from `loaded`, or be left out because the new task has another
    number of labels. Raises FirthError when an encoder's parameter is missing or has another shape.
    """
    fresh = []
    flat, new = flatten_dict(params, sep="/"), flatten_dict(loaded, sep="/")
    for name, value in flat.items():
        found = new.get(name)
        fits = found is not None and found.shape == value.shape
        if fits:
            flat[name] = np.asarray(found, value.dtype)
            continue
        fresh.append(name)
        if name.startswith("encoder/") and not name.startswith("encoder/pooler/"):
            shape = "missing" if found is None else f"of shape {list(found.shape)}"
            raise FirthError(
                f"{source}: {name} is {shape}, but this model's is {list(value.shape)}; "
                "the model section must describe the weights that it starts from"
            )
    return unflatten_dict(flat, sep="/"), fresh
