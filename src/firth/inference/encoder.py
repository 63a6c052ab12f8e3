"""A model and its tokenizer in Python: from text or arrays to every layer's hidden states.

B batch, L length, N layers, D hidden size, H heads, V vocabulary, C labels.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from firth.errors import FirthError
from firth.inference.batching import pad_rows
from firth.inference.execution.ahead import computed
from firth.inference.execution.program import Program, identity
from firth.inference.inputs import Text, check_direction
from firth.models.heads import find_head
from firth.models.model import bound, family, longest, parameter_count
from firth.registry import resolve
from firth.tokenizers.special_tokens import Template, build_template, truncation
from firth.weights.read import Saved, read_model
from firth.weights.transfer.task import of_task
from firth.weights.write import write_published

# Families whose inputs are not token ids: an `Encoder` of their own.
ENCODERS = {"elmo": "firth.inference.characters.elmo:ElmoEncoder"}


@dataclasses.dataclass(frozen=True)
class Representation:
    """The output of an `Encoder` as numpy arrays, float32 unless stated.

    tokens: each text's tokens as strings, without padding (ids if there is no tokenizer).
    ids, segments: int32 [B, L]. mask: bool [B, L], True at real tokens.
    hidden: [N+1, B, L, D], the embeddings and every layer. Values at padding mean nothing.
    pooled: [B, D], or None if the model has no pooler.
    logits: {"mlm" and "lm": [B, L, V], "nsp" and "sop": [B, 2], "rtd": [B, L], "classifier":
      [B, C]}, those of the model's heads.
    attentions: probabilities [N, B, H, L, L], or None unless requested.
    """

    tokens: list[list]
    ids: np.ndarray
    segments: np.ndarray
    mask: np.ndarray
    hidden: np.ndarray
    pooled: np.ndarray | None
    logits: dict[str, np.ndarray]
    attentions: np.ndarray | None

    def __repr__(self):
        arrays = {"hidden": self.hidden, "pooled": self.pooled, "attentions": self.attentions}
        arrays |= {f"logits[{head!r}]": logits for head, logits in self.logits.items()}
        shapes = [f"{name} {list(x.shape)}" for name, x in arrays.items() if x is not None]
        texts, tokens = self.mask.shape[0], int(self.mask.sum())
        counted = f"{texts:,} text{'' if texts == 1 else 's'}"
        return f"Representation({counted}, {tokens:,} tokens; {', '.join(shapes)})"


def load(
    source, *, dtype: str | None = None, heads: bool | Sequence[str] = True, task: str | None = None
) -> "Encoder":
    """Load an encoder.

    Args:
      source: a published directory, a Firth directory, a workdir, "hf:org/name" or "minilm".
      dtype: of the computation, "float32" (default) or "bfloat16"; on a CPU bfloat16 is that of the
        products with parameters alone, whose rounded copies stay in memory beside them.
      heads: compute the logits of all heads (True), of none (False), or of the named ones.
      task: of a model of several tasks, the one whose head is the classifier.

    Raises FirthError, naming the file, if something is missing, damaged or not supported.
    """
    saved = of_task(read_model(source), task)
    kind = ENCODERS.get(saved.spec["family"], f"{__name__}:Encoder")
    return resolve("model.family", kind, {})(saved, dtype=dtype, heads=heads)


class Encoder:
    """An encoder ready for use: `encoder(texts)` or `encoder(tokens=..., mask=..., segments=...)`.

    Attributes: saved (the loaded files), tokenizer (or None), model, params (on the device),
    max_length (rows of the position table).
    """

    def __init__(self, saved: Saved, *, dtype: str | None = None, heads=True):
        heads = (saved.heads if heads else ()) if isinstance(heads, bool) else tuple(heads)
        if unknown := set(heads) - set(saved.heads):
            raise FirthError(
                f"{saved.source} has no head {min(unknown)!r}; it has "
                f"{', '.join(saved.heads) or 'none'}"
            )
        if dtype not in (None, "float32", "bfloat16"):
            raise FirthError(f"dtype={dtype!r} is unknown; choose float32 or bfloat16")
        self.saved = saved
        self.tokenizer = saved.tokenizer()
        self.max_length = longest(saved.spec)
        # A CPU gains by products in bfloat16, and loses by anything else in it.
        on_cpu, dtype = jax.default_backend() == "cpu", dtype or "float32"
        whole, products = ("float32", dtype) if on_cpu else (dtype, "float32")
        self.model = saved.model(heads, dtype=whole).clone(products=products)
        parts = [name for name in ("encoder", *heads) if name in saved.params]
        self.params = jax.device_put({name: saved.params[name] for name in parts})
        self._programs, self._narrow = {}, {} if products == "bfloat16" else None

    def __repr__(self):
        spec, config = self.saved.spec, self.model.encoder.config
        parts = [
            f"{spec['family']}, {config.num_layers} x {config.hidden_size}",
            f"{parameter_count(self.params):,} parameters",
            f"heads {', '.join(self.model.heads) or 'none'}",
            f"{spec['vocab_size']:,} tokens" + ("" if self.tokenizer else ", no tokenizer"),
        ]
        return f"Encoder({'; '.join(parts)}; from {self.saved.source})"

    def program(self, key, make) -> Program:
        """The `Program` of `make()`, a function (params, *arrays), made once for a key.

        `key` is hashable. Its text names all that the function depends on, beside the model.
        """
        if key not in self._programs:
            known = identity(self.model, self.params, key)
            self._programs[key] = Program(make(), known, self._narrow)
        return self._programs[key]

    @functools.cached_property
    def template(self) -> Template:
        """The special tokens around the model's texts."""
        return build_template(family(self.saved.spec["family"]).SPECIAL_TOKENS, self.tokenizer)

    def _forward(self, params, tokens_BL, segments_BL, mask_BL, attentions):
        read = bound(self.model, lambda model, *batch: model(*batch, attentions=attentions))
        out, logits = read(params, tokens_BL, segments_BL, mask_BL)
        # The batch axis comes first in every array, so that chunks concatenate alike.
        arrays = {"hidden": out.hidden.swapaxes(0, 1), "logits": logits}
        if out.pooled is not None:
            arrays["pooled"] = out.pooled
        if attentions:
            arrays["attentions"] = out.attentions.swapaxes(0, 1)
        return jax.tree.map(lambda x: x.astype(np.float32), arrays)

    def __call__(
        self,
        texts: Sequence[Text] | None = None,
        *,
        tokens=None,
        mask=None,
        segments=None,
        attentions: bool = False,
        truncate: bool = False,
        batch_size: int = 32,
    ) -> Representation:
        """Represent texts, or token ids.

        Args:
          texts: strings or pairs of strings, with or without special tokens such as "[MASK]".
          tokens: int [B, L], instead of texts; needs no tokenizer.
          mask: bool [B, L], True at real tokens; all True by default.
          segments: int [B, L]; zeros by default.
          attentions: also return the attention probabilities.
          truncate: cut texts that exceed the position table instead of refusing them.
          batch_size: rows computed at a time. Memory holds the whole result.

        Raises FirthError, naming the text, row or value that the model cannot represent.
        """
        if (texts is None) == (tokens is None):
            raise FirthError("give either texts or tokens=")
        if texts is not None:
            ids, segments, mask = self.pad(
                self.tokenise(texts, truncate=truncate, advice="shorten it, or truncate=True")
            )
            length = int(mask.sum(1).max())  # without the padding to a fixed shape
        else:
            ids, segments, mask = self._checked(tokens, segments, mask)
            length = ids.shape[1]
        apply = self.program(
            ("forward", attentions), lambda: functools.partial(self._forward, attentions=attentions)
        )

        def prepare(begin):
            ids_BL, *others = (x[begin : begin + batch_size] for x in (ids, segments, mask))
            return len(ids_BL), pad_rows((self.inputs(ids_BL), *others), batch_size)

        found = computed(apply, self.params, map(prepare, range(0, len(ids), batch_size)))
        parts = [jax.tree.map(lambda x, n=n: x[:n], arrays) for n, arrays in found]
        whole = jax.tree.map(lambda *chunks: np.concatenate(chunks), *parts)
        for head, logits in whole["logits"].items():
            if find_head(head).per_token:
                whole["logits"][head] = logits[:, :length]
        if attentions:
            attended = whole["attentions"].swapaxes(0, 1)[..., :length, :length]
        return Representation(
            tokens=[self._names(row[real]) for row, real in zip(ids, mask, strict=True)],
            ids=ids[:, :length],
            segments=segments[:, :length],
            mask=mask[:, :length],
            hidden=whole["hidden"].swapaxes(0, 1)[:, :, :length],
            pooled=whole.get("pooled"),
            logits=whole["logits"],
            attentions=attended if attentions else None,
        )

    @functools.cached_property
    def classifier(self):
        """Its classifier; a FirthError says what to do where it has none."""
        from firth.inference.predictions.classifier import Classifier

        return Classifier(self)

    def predict(self, texts: Text | Sequence[Text], *, top: int | None = None, **options) -> list:
        """The labels of texts with their probabilities, or their scores.

            encoder = firth.load("runs/snippets")
            encoder.predict("A waste of time.")  # [Prediction('negative', 0.6050)]
            encoder.predict([("a text", "its pair")])[0].probabilities

        Args:
          texts: a string, a pair (a tuple of two), or a list of strings and pairs.
          top: how many probabilities a prediction holds at most, the likeliest first; None: all.
          options: `threshold` (0.5, of several labels a text), `batch_size` (32), `max_length`,
            `long` ("truncate", or "average" over windows), `stride` (tokens between windows),
            `packed` (texts share rows).

        Returns a `firth.inference.predictions.classifier.Prediction` for each text: `label` (or
        `labels`), `probability` and `probabilities` {label: p}, or `score`. Raises FirthError as
        `firth.inference.predictions.classifier.predict` does.
        """
        from firth.inference.predictions.classifier import predict

        return predict(self, texts, top=top, **options)

    def encode(
        self,
        texts: Sequence[Text],
        *,
        layer: int = -1,
        pool: str = "mean",
        normalize: bool = False,
        batch_size: int = 32,
        max_length: int | None = None,
    ) -> np.ndarray:
        """The vectors of texts, float32 [texts, D], as `firth represent` writes them.

            vectors = encoder.encode(["The vase broke.", "Silence fell."], normalize=True)
            vectors @ vectors.T  # cosine similarities

        Args:
          texts: strings and pairs of strings.
          layer: its number; negative ones count from the last.
          pool: "mean" over the text's tokens, or "cls", the token that stands for the text.
          normalize: divide each vector by its Euclidean norm.
          batch_size: how large batches are; see `firth.inference.vectors.vectors`.
          max_length: cut texts to this many tokens. With None a text must fit the position table.

        Raises FirthError as `firth.inference.vectors.vectors` does.
        """
        from firth.inference.vectors import Pooling, choose_layers, vectors

        if isinstance(texts, str) or not texts:
            raise FirthError(f"expected a list of texts, not {texts!r:.40}")
        if pool == "none":
            raise FirthError("pool='none' has a vector a token; see encoder(texts).hidden")
        pooling = Pooling(choose_layers([layer], self.saved.spec["num_layers"]), pool, normalize)
        lines = ((f"text {i}", text) for i, text in enumerate(texts))
        found = vectors(self, lines, pooling, batch_size, max_length)
        return np.stack([vector.values[0] for vector in found])

    def fill(self, texts: Text | Sequence[Text], *, top: int = 5, targets=None) -> list:
        """The likeliest tokens for each mask of the texts; see `firth.inference.fill.fill`.

        Args:
          texts: a string with "[MASK]" in it, a pair, or a list of strings and pairs.
          top: the number of choices for a mask.
          targets: choose only among these words.

        Returns one `firth.inference.fill.Filled` for each mask: `row` (which text), `position`, and
        `choices`, each with `token`, `id`, `probability` and `text`. Raises FirthError as
        `firth.inference.fill.fill` does.
        """
        from firth.inference.fill import fill

        return fill(self, texts, top, targets)

    def generate(self, texts: str | Sequence[str], **settings) -> list:
        """Continue texts with a causal language model; see `firth.inference.generate.generate`.

        Args:
          texts: a string or a list of them.
          settings: `max_tokens`, `temperature`, `top_k`, `top_p`, `greedy`, `stop`, `seed`,
            `samples`, `stream`.

        Returns one `firth.inference.generate.Generated` for each sample: `row` (which text),
        `sample`, `text` (the continuation), `ids` and `reason`. Raises FirthError as
        `firth.inference.generate.generate` does.
        """
        from firth.inference.generate import generate

        return generate(self, texts, **settings)

    def tokenise(
        self, texts: Sequence[Text], *, limit=None, truncate=False, names=None, advice="shorten it"
    ) -> list:
        """(ids int32 [n] with special tokens, where the second text begins) of each text.

        Args:
          texts: strings or pairs.
          limit: the most tokens a text may have; by default the rows of the position table.
          truncate: cut longer texts, the longer one of a pair first, as the BERT code does.
          names: the names of the texts in errors; by default "text 0" and so on.
          advice: what the error says to do with a text that is too long.

        Raises FirthError for a value that is not a text and for a text that is too long.
        """
        check_direction(self)
        tokenizer, limit = self.tokenizer, limit or self.max_length
        if tokenizer is None:
            raise FirthError(f"{self.saved.source} holds no tokenizer, which reading texts needs")
        template = self.template
        if isinstance(texts, str) or not texts:
            raise FirthError(f"expected a list of texts, not {texts!r:.40}")
        pairs = [(t, "") if isinstance(t, str) else t for t in texts]
        for i, pair in enumerate(pairs):
            if not (isinstance(pair, tuple | list) and [type(t) for t in pair] == [str, str]):
                raise FirthError(f"text {i} is {pair!r:.40}, expected a string or two of them")
        firsts = tokenizer.encode([pair[0] for pair in pairs], special=True)
        seconds = tokenizer.encode([pair[1] for pair in pairs], special=True)
        tokenised = []
        for i, text in enumerate(texts):
            a, b, paired = firsts[i].ids, seconds[i].ids, not isinstance(text, str)
            special = template.size(1 + paired)
            size = len(a) + len(b) + special
            if size > limit and not truncate:
                raise FirthError(
                    f"{names[i] if names else f'text {i}'} has {size} tokens with special ones, "
                    f"but the model has {limit} positions; {advice}"
                )
            a_cut, b_cut = truncation(len(a), len(b), max(limit - special, 0))
            a, b = a[: len(a) - a_cut], b[: len(b) - b_cut]
            tokenised.append(template.join(a, b if paired else None))
        return tokenised

    def pad(
        self, tokenised: list, length: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(ids int32, segments int32, mask bool), all [B, L].

        L is `length`; without it, one of a few that the longest fits into.
        """
        if length is None:
            most = max(len(ids) for ids, _ in tokenised)
            step = 16 if most <= 64 else 32  # few shapes, because each is compiled once
            length = min(-(-most // step) * step, self.max_length)
        ids = np.full((len(tokenised), length), self.template.pad, np.int32)
        segments = np.zeros_like(ids)
        mask = np.zeros(ids.shape, bool)
        for row, (text, second) in enumerate(tokenised):
            ids[row, : len(text)] = text
            segments[row, second : len(text)] = 1
            if self.template.last_segment is not None:
                segments[row, len(text) - 1] = self.template.last_segment
            mask[row, : len(text)] = True
        return ids, segments, mask

    def inputs(self, ids):
        """What the body reads for token ids [B, L]: the ids themselves."""
        return ids

    def _checked(self, tokens, segments, mask):
        """The user's arrays as int32, int32 and bool; FirthError if they do not fit the model."""
        ids = np.asarray(tokens)
        segments = np.zeros(ids.shape, np.int32) if segments is None else np.asarray(segments)
        mask = np.ones(ids.shape, bool) if mask is None else np.asarray(mask).astype(bool)
        if ids.ndim != 2 or not ids.size or not ids.shape == segments.shape == mask.shape:
            raise FirthError(
                "tokens, segments and mask must be non-empty and of one shape [B, L]; they are "
                f"{ids.shape}, {segments.shape}, {mask.shape}"
            )
        if ids.shape[1] > self.max_length:
            raise FirthError(f"L={ids.shape[1]}, but the model has {self.max_length} positions")
        kinds = max(self.model.encoder.config.type_vocab_size, 1)
        sizes = ("tokens", ids, self.saved.spec["vocab_size"]), ("segments", segments, kinds)
        for name, array, size in sizes:
            if not np.issubdtype(array.dtype, np.integer):
                raise FirthError(f"{name} are {array.dtype}, expected integers")
            if array.min() < 0 or array.max() >= size:
                raise FirthError(
                    f"{name} range from {array.min()} to {array.max()}, outside 0 .. {size - 1}"
                )
        return ids.astype(np.int32), segments.astype(np.int32), mask

    def _names(self, ids) -> list:
        return [self.tokenizer.token(n) for n in ids] if self.tokenizer else ids.tolist()

    def save(self, directory, overwrite: bool = False):
        """Write the published layout with all heads; transformers loads it.

        Raises FirthError if `directory` is not empty and `overwrite` is False.
        """
        write_published(directory, self.saved, overwrite)
