"""The heads a model may have: one class each, and one line here that names it.

A head builds its module and picks its input from the encoder's output. The modules are in
`firth.layers.heads`. A recipe's objective may name the user's own head as "module:Class".
"""

import abc

from firth import registry
from firth.layers.class_softmax import ClassSoftmaxHead
from firth.layers.heads import (
    ClassifierHead,
    LanguageModelHead,
    MaskedLMHead,
    SpanHead,
    TaskHeads,
    TokenHead,
    classifier_head,
)
from firth.layers.transformer import dense, edge_initializer

HEADS = {
    "mlm": "firth.models.heads:MaskedWord",
    "lm": "firth.models.heads:NextWord",
    "bilm": "firth.models.elmo.head:BothNeighbours",
    "nsp": "firth.models.heads:TextPair",
    "sop": "firth.models.heads:TextPair",
    "rtd": "firth.models.heads:ReplacedToken",
    "copy": "firth.models.heads:CopiedToken",
    "bridge": "firth.models.heads:Bridge",
    "classifier": "firth.models.heads:Label",
    "choice": "firth.models.heads:Choice",
    "tasks": "firth.models.heads:Tasks",
    "answer": "firth.models.heads:Answer",
    "tags": "firth.models.tagger.heads:Tags",
    "crf": "firth.models.tagger.heads:Chain",
}


class Head(abc.ABC):
    """A head of a model. B batch, L length, D hidden size.

    per_token: whether its logits have an axis of tokens, [B, L, ...].
    saved: whether exports of the model keep it.
    """

    per_token = False
    saved = True

    def reads_pooled(self, config) -> bool:
        """Whether a body with this config must give it the pooled output."""
        del config
        return False

    @abc.abstractmethod
    def build(self, model, name: str):
        """Return the flax module, with parameters under `name`; the model's setup calls it."""

    def logits(self, model, name: str, out, mask_BL):
        """Logits from the encoder's output, without dropout."""
        del mask_BL
        return model.head(name)(out.last)


class MaskedWord(Head):
    """Vocabulary logits [B, L, V] of the token at each position."""

    per_token = True

    def build(self, model, name):
        """As wide as the word table in its scores."""
        return MaskedLMHead(model.encoder.config, model.scores_against, name=name)

    def logits(self, model, name, out, mask_BL):
        """At every position."""
        return model.mlm(out.last)


class NextWord(Head):
    """Vocabulary logits [B, L, V] of the token after each; XLNet: of the token itself."""

    per_token = True

    def build(self, model, name):
        """The word table, with a bias where the family has one, or classes of words."""
        c = model.encoder.config
        kind = ClassSoftmaxHead if getattr(c, "class_sizes", ()) else LanguageModelHead
        return kind(c, name=name)

    def logits(self, model, name, out, mask_BL):
        """At every position."""
        return model.lm(out.last)


class TextPair(Head):
    """Logits [B, 2]: 0 the second text follows the first; 1 it does not, or they are swapped."""

    def reads_pooled(self, config):
        """Always."""
        return True

    def build(self, model, name):
        """An affine map."""
        return ClassifierHead(model.encoder.config, 2, name=name)

    def logits(self, model, name, out, mask_BL):
        """Of the pooled output."""
        return model.head(name)(out.pooled)


class ReplacedToken(Head):
    """Logits [B, L] that a token was replaced."""

    per_token = True

    def build(self, model, name):
        """A dense layer and one logit."""
        return TokenHead(model.encoder.config, name=name)


class CopiedToken(Head):
    """Logits [B, L] that a token is the original (All-Tokens MLM)."""

    per_token = True

    def build(self, model, name):
        """An affine map."""
        c = model.encoder.config
        return dense(c, 1, name, bias=True, init=edge_initializer(c))

    def logits(self, model, name, out, mask_BL):
        """[B, L]."""
        return model.copies(out.last)


class Bridge(Head):
    """Hidden states in the teacher's width [B, L, D_teacher]; useless without the teacher."""

    saved = False

    def build(self, model, name):
        """An affine map."""
        return dense(model.encoder.config, model.teacher.encoder.config.hidden_size, name)


class Label(Head):
    """Logits [B, C] of a text's labels."""

    def reads_pooled(self, config):
        """Where the family's classifier has no hidden layer of its own."""
        return classifies_pooled(config)

    def build(self, model, name):
        """The family's classifier."""
        return _classifier(model, name, model.num_labels)

    def logits(self, model, name, out, mask_BL):
        """Of the input of the family's classifier."""
        return model.classify(out, mask_BL, head=name)


class Choice(Label):
    """Logits [B, 1] of texts that each have one of the choices of a question."""

    def build(self, model, name):
        """The family's classifier with a single output."""
        return _classifier(model, name, 1)


class Tasks(Label):
    """Logits [B, C] of several tasks beside each other, by a classifier of each."""

    def build(self, model, name):
        """The family's classifier for each of the model's tasks."""
        c = model.encoder.config
        return TaskHeads(c, model.tasks, model.classifier_dropout, name=name)


class Answer(Head):
    """Logits [B, L, 2] that an answer begins at a token, and that it ends there."""

    per_token = True

    def build(self, model, name):
        """An affine map, as wide as two."""
        return SpanHead(model.encoder.config, model.classifier_dropout, name=name)


def _classifier(model, name: str, outputs: int):
    return classifier_head(model.encoder.config, outputs, model.classifier_dropout, name)


def classifies_pooled(config) -> bool:
    """Whether the classifier of a family (by its Config) reads the pooled output."""
    return not config.classifier_hidden and config.classifier_pooling not in ("last", "concat")


def find_head(name: str) -> Head:
    """The head of that name; raises FirthError for an unknown one."""
    return registry.resolve("head", name, HEADS)()


def key_of(name: str) -> str:
    """Key of a head's parameters: its name, or the class of the user's own head."""
    return name.rpartition(":")[2]
