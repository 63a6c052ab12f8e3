"""Replaced-token detection and its ablations (Clark et al. 2020, sections 3.2 and 3.4, table 5).

A generator fills masked positions with samples; the model then learns from the filled-in text:

    electra       which of all the tokens were replaced
    electra_15    the same of the masked positions alone ("ELECTRA 15%")
    replace_mlm   the original tokens at the masked positions ("Replace MLM")
    all_tokens    the original token at every position, copying allowed ("All-Tokens MLM")

B batch, L length, P prediction slots, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp

from firth.errors import FirthError
from firth.layers.products import Product, masked_words, of_body
from firth.models.model import family
from firth.objectives import mask, mlm
from firth.objectives.losses import cross_entropy, log_loss, ranked_right
from firth.objectives.objective import Objective, Sources
from firth.objectives.sample import sample

VARIANTS = {  # name -> the heads that the model learns with
    "electra": ("rtd",),
    "electra_15": ("rtd",),
    "replace_mlm": ("mlm",),
    "all_tokens": ("mlm", "copy"),
}
SHARING = ("none", "embeddings", "all")


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Objective):
    """A generator's masked LM loss and, `weight` times, what the model learns from its samples.

    The generator shares (`sharing`) nothing with the model, the embeddings (token, position, type
    and their norm), or everything, which needs equal sizes. `width` and `depth` are fractions of
    the model's. `correct` False forbids the generator to draw the original token.

    `legacy_with_replacement` masks as the released code does. It draws positions with replacement,
    so about 13.8 % are masked instead of 15 %. A position drawn twice counts twice in the
    generator's loss, and gets the floored mean of its two sampled ids (google-research/electra
    issue 41).

    `trained` is a frozen generator from an earlier run: the second stage of the paper's two-stage
    training, in which the model may also start from it (`init_from`).
    """

    masked: mlm.MaskedLM
    variant: str = "electra"
    weight: float = 50.0
    generator_weight: float = 1.0
    temperature: float = 1.0
    correct: bool = True
    legacy_with_replacement: bool = False
    width: float = 0.25
    depth: float = 1.0
    sharing: str = "embeddings"
    trained: object = None  # firth.weights.read.Saved

    bidirectional = True

    @classmethod
    def from_config(cls, fields: dict, sources: Sources) -> "ReplacedTokens":
        """Build it from a config's `objective` section.

        Raises FirthError for a generator (`generator_from`) that cannot fill this corpus' masks.
        """
        own = {f.name for f in dataclasses.fields(cls)} - {"masked", "trained"}
        chosen = {name: fields.pop(name) for name in own & fields.keys()}
        if source := fields.pop("generator_from", ""):
            chosen["trained"] = trained = sources.load(source)
            check_generator(trained, source, sources.tokenizer)
        return cls(mlm.MaskedLM.from_config(fields, sources), **chosen)

    def __post_init__(self):
        for name, known in (("variant", VARIANTS), ("sharing", SHARING)):
            if getattr(self, name) not in known:
                raise FirthError(
                    f"objective.{name}={getattr(self, name)!r} is unknown; one of "
                    f"{', '.join(known)}"
                )
        if not (self.width > 0 and self.depth > 0 and self.temperature > 0):
            raise FirthError(
                f"objective.width={self.width}, depth={self.depth} and temperature="
                f"{self.temperature} must be greater than 0"
            )
        if self.sharing == "all" and (self.width, self.depth) != (1.0, 1.0):
            raise FirthError(
                "objective.sharing='all' makes one body play both parts: it needs width=1 and "
                f"depth=1, not {self.width} and {self.depth}"
            )
        if self.trained and self.sharing != "none":
            raise FirthError(
                "objective.generator_from brings a generator with embeddings of its own: it needs "
                f"sharing='none', not {self.sharing!r}"
            )
        if self.masked.pairs != "none":
            raise FirthError(
                "objective.pairs: replaced-token detection has no pair objective; use "
                "objective.pairs=none and rows without pairs (bert.py:SIZE,view=packed)"
            )

    @property
    def heads(self):
        """Heads whose logits the losses need."""
        heads = VARIANTS[self.variant]
        return heads if self.sharing != "all" or "mlm" in heads else ("mlm", *heads)

    @property
    def coefficients(self):
        """Weight of each term in the total loss."""
        return {"generator": 0.0 if self.trained else self.generator_weight, "model": self.weight}

    @property
    def frozen(self):
        """Regular expressions for the paths of parameters that are never trained."""
        return ("^generator/",) if self.trained else ()

    def initial(self, spec: dict) -> dict:
        """The parameters of a `trained` generator."""
        del spec
        if not self.trained:
            return {}
        return {"generator": {name: self.trained.params[name] for name in ("encoder", "mlm")}}

    def parts(self, spec: dict) -> dict:
        """The generator for `models.model.create`: narrower, with heads of the same width."""
        if self.sharing == "all":
            return {"tied": True}
        if self.trained:
            run_as = {name: spec[name] for name in ("scan", "remat", "dtype") if name in spec}
            return {"generator": self.trained.spec | run_as, "tied": False}
        if "embedding_size" not in {
            f.name for f in dataclasses.fields(family(spec["family"]).Config)
        }:
            raise FirthError(
                f"objective 'rtd' cannot train model.family={spec['family']!r}: its generator "
                "needs embeddings of another width than its layers, which this body lacks; use mlm"
            )
        hidden = max(round(spec["hidden_size"] * self.width), 1)
        head = spec["hidden_size"] // spec["num_heads"]
        heads = max(hidden // head, 1)
        ratio = spec["intermediate_size"] / spec["hidden_size"]
        shared = spec.get("embedding_size") or spec["hidden_size"]
        generator = dict(spec) | dict(
            hidden_size=hidden,
            num_heads=heads,
            intermediate_size=max(round(hidden * ratio), 1),
            num_layers=max(round(spec["num_layers"] * self.depth), 1),
            embedding_size=shared if self.sharing == "embeddings" else 0,
        )
        if "pooler" in spec:
            generator["pooler"] = False
        return {"generator": generator, "tied": self.sharing == "embeddings"}

    def check(self, data):
        """As masked language modelling."""
        self.masked.check(data)

    def corrupt(self, batch, key):
        """Mask for the generator; add `original` tokens and the `uniform` draws [B, P, 2]."""
        keys_B = mask.row_keys(jax.random.fold_in(key, 1), batch)
        legacy = self.legacy_with_replacement
        corrupt = self._corrupt_with_replacement if legacy else self.masked.corrupt
        corrupted = corrupt(batch, key)
        P = corrupted["positions"].shape[1]
        uniform_BP2 = jax.vmap(lambda k: jax.random.uniform(k, (P, 2)))(keys_B)
        return corrupted | {"original": batch["tokens"], "uniform": uniform_BP2}

    def _corrupt_with_replacement(self, batch, key):
        """As `MaskedLM.corrupt`, but with positions drawn independently of each other.

        Each draw hides its token with the mask's rate; one such draw is enough.
        """
        masked, tokens_BL = self.masked, batch["tokens"]
        keys_B = mask.row_keys(key, batch)
        avoided = jnp.asarray([*masked.special_ids, masked.mask_id])
        candidates_BL = batch["mask"] & ~jnp.isin(tokens_BL, avoided)
        slots = min(masked.max_predictions, tokens_BL.shape[1])
        counts_B = masked.counts(keys_B, batch["mask"])
        positions_BP, weights_BP = mask.select_with_replacement(
            keys_B, candidates_BL, counts_B, slots
        )
        u_BP = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, 1), (slots,)))(keys_B)
        hides_BP = weights_BP * (u_BP < masked.rates[0])
        hidden_BL = mask.scatter(jnp.zeros_like(batch["mask"]), positions_BP, hides_BP, True)
        return batch | {
            "tokens": jnp.where(hidden_BL, masked.mask_id, tokens_BL),
            "positions": positions_BP,
            "targets": mask.gather(tokens_BL, positions_BP),
            "target_weights": weights_BP,
        }

    def products(self, model, *, rows, length, micro):
        """See `Objective.products`."""
        c, shape = model.encoder.config, dict(rows=rows, length=length, micro=micro)
        read = min(self.masked.max_predictions, length)
        predicted = rows * read
        generator = model.generator.encoder if model.generator else model.encoder
        g = generator.config
        scored = c.embedding_width if model.tied else g.embedding_width
        backward = 0 if self.trained else 2
        guesses = masked_words(g, predicted, scored)
        body = of_body(generator, read=read, embedded=scored, **shape)
        for product in (*body, guesses):
            yield product._replace(owner="generator", backward=min(product.backward, backward))
        yield from c.products(**shape)
        tokens = rows * length
        if self.variant in ("electra", "electra_15"):
            yield Product("rtd", 2 * tokens * c.hidden_size * (c.hidden_size + 1))
        elif self.variant == "replace_mlm":
            yield masked_words(c, predicted)
        else:
            yield masked_words(c, tokens)
            yield Product("copy", 2 * tokens * c.hidden_size)

    def weights(self, batch):
        """The divisor of each term's sum, over the whole (corrupted) batch."""
        slots = batch["target_weights"].sum()
        everywhere = self.variant in ("electra", "all_tokens")
        tokens = batch["mask"].sum(dtype=jnp.float32)
        return {"generator": slots, "model": tokens if everywhere else slots}

    def fill(self, logits_BPV, batch):
        """Tokens [B, L] with samples from the generator's logits at the masked positions.

        No gradient flows through them into the generator.
        """
        logits_BPV = jax.lax.stop_gradient(logits_BPV) / self.temperature
        if not self.correct:
            is_target = batch["targets"][..., None] == jnp.arange(logits_BPV.shape[-1])
            logits_BPV = jnp.where(is_target, -jnp.inf, logits_BPV)
        drawn_BP = sample(logits_BPV, batch["uniform"])
        if self.legacy_with_replacement:
            drawn_BP = _mean_of_draws(drawn_BP, batch)
        return mask.scatter(
            batch["original"], batch["positions"], batch["target_weights"], drawn_BP
        )

    def losses(self, model, batch, *, train: bool):
        """Sums {term: loss sum} and metrics {name: (sum, weight)} of a corrupted batch."""
        weights = self.weights(batch)
        at_BP, texts = batch["positions"], (batch["segments"], batch["mask"])
        hidden_BPD = model.generator_hidden(at_BP, batch["tokens"], *texts, train=train)
        logits_BPV = model.generate(hidden_BPD)
        generator_loss, right = cross_entropy(logits_BPV, batch["targets"], batch["target_weights"])
        filled_BL = self.fill(logits_BPV, batch)
        replaced_BL = (filled_BL != batch["original"]) & batch["mask"]
        out = model.encoder(filled_BL, *texts, train=train)
        learn = self._detect if "rtd" in self.heads else self._predict
        loss, measured = learn(model, out.last, filled_BL, replaced_BL, batch, train)
        metrics = {
            "generator_loss": (generator_loss, weights["generator"]),
            "generator_accuracy": (right, weights["generator"]),
            "masked_fraction": (weights["generator"], batch["mask"].sum(dtype=jnp.float32)),
            "replaced_fraction": (
                replaced_BL.sum(dtype=jnp.float32),
                batch["mask"].sum(dtype=jnp.float32),
            ),
        }
        return {"generator": generator_loss, "model": loss}, metrics | measured

    def _detect(self, model, hidden_BLD, filled_BL, replaced_BL, batch, train):
        """Sum of the binary cross-entropies, and metrics, of detecting replaced tokens.

        Outside training there is the area under the ROC curve too, within each batch: what the
        discriminator knows, even while it calls no token replaced.
        """
        del filled_BL
        logits_BL = model.head("rtd")(hidden_BLD)
        weights_BL = batch["mask"].astype(jnp.float32)
        if self.variant == "electra_15":
            weights_BL = mask.scatter(
                jnp.zeros_like(weights_BL), batch["positions"], batch["target_weights"], 1.0
            )
        predicted_BL = logits_BL > 0
        losses_BL = jnp.logaddexp(0.0, jnp.where(replaced_BL, -logits_BL, logits_BL))
        loss, weight = (losses_BL * weights_BL).sum(), weights_BL.sum()
        hits = (weights_BL * (predicted_BL & replaced_BL)).sum()
        ranked = {} if train else {"rtd_auc": ranked_right(logits_BL, replaced_BL, weights_BL)}
        return loss, ranked | {
            "rtd_loss": (loss, weight),
            "rtd_accuracy": ((weights_BL * (predicted_BL == replaced_BL)).sum(), weight),
            "rtd_precision": (hits, (weights_BL * predicted_BL).sum()),
            "rtd_recall": (hits, (weights_BL * replaced_BL).sum()),
        }

    def _predict(self, model, hidden_BLD, filled_BL, replaced_BL, batch, train):
        """Sum of the negative log-likelihoods, and metrics, of the original tokens."""
        del replaced_BL, train
        if self.variant == "replace_mlm":
            logits_BPV = model.mlm(mask.gather(hidden_BLD, batch["positions"]))
            weights_BP = batch["target_weights"]
            loss, right = cross_entropy(logits_BPV, batch["targets"], weights_BP)
            weight = weights_BP.sum()
        else:
            weights_BL = batch["mask"].astype(jnp.float32)
            losses_BL, _ = log_loss(model.mlm(hidden_BLD), batch["original"])
            logits_BL = model.copies(hidden_BLD)
            # p(original) = D [it stands there] + (1 - D) softmax, in logarithms.
            copied_BL = jnp.where(
                filled_BL == batch["original"], jax.nn.log_sigmoid(logits_BL), -jnp.inf
            )
            likelihood_BL = jnp.logaddexp(copied_BL, jax.nn.log_sigmoid(-logits_BL) - losses_BL)
            loss, weight = -(likelihood_BL * weights_BL).sum(), weights_BL.sum()
            right = (weights_BL * (likelihood_BL > jnp.log(0.5))).sum()
        return loss, {"mlm_loss": (loss, weight), "mlm_accuracy": (right, weight)}


def _mean_of_draws(drawn_BP, batch):
    """For each slot, the floored mean of the ids drawn at its position."""
    same_BPP = batch["positions"][:, :, None] == batch["positions"][:, None, :]
    same_BPP &= batch["target_weights"][:, None, :] > 0
    total_BP = (same_BPP * drawn_BP[:, None, :]).sum(-1)
    return total_BP // jnp.maximum(same_BPP.sum(-1), 1)


def check_generator(saved, source: str, tokenizer):
    """Raise FirthError for weights that cannot fill masks in this tokenizer's texts."""
    if "mlm" not in saved.heads:
        raise FirthError(f"objective.generator_from={source} has no masked LM head")
    own = saved.tokenizer()
    words = own.vocab if own else saved.spec["vocab_size"]
    if words not in (tokenizer.vocab, tokenizer.vocab_size):
        raise FirthError(
            f"objective.generator_from={source} has another vocabulary "
            f"({saved.spec['vocab_size']:,} words) than the corpus "
            f"({tokenizer.vocab_size:,}); prepare the store with the generator's tokenizer"
        )
