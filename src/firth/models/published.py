"""The published (Hugging Face) form of a family: tensor names and config.json.

The families fill these tables in; `firth.weights.names` and `firth.weights.config` read them.
"""

import dataclasses
from collections.abc import Callable

# name in config.json -> name in Config; of several, the first is the one that is written
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
}


@dataclasses.dataclass(frozen=True)
class Published:
    """The published form of a family. The defaults are those of a family without one.

    A *module* below is a row (parameter path, published name, kind). The kind says which tensors
    the module has: "dense", "norm", "embed" and so on, see `firth.weights.names.LEAVES`. A letter
    in braces, such as {i}, stands for an index.

    Tensor names:
      modules: all modules, the encoder's first, then the heads'. A head's path begins with its
        name.
      tied: further rows for parameters that files hold under a second name as well (the output
        embedding is the input embedding). The copies must be equal.
      indices: {letter: field of Config that says how many indices there are}.
      prefix: how the names of an encoder begin in a model with heads. A bare encoder is published
        without it.
      buffers: names of tensors that are not parameters: position ids and causal masks. What they
        hold follows from the Config, see `firth.weights.buffers`.
      parameterless_heads: {head without parameters of its own: published tensor name}. A file has
        the head if it holds the tensor or if its config.json names the head's class.
      exclusive_heads: rows (head, other head, sign), for two heads that publish the same names. The
        sign is a published tensor name or a class of transformers. A file that holds the tensor, or
        whose config.json names the class, has the first head, any other file the second.
      architectures: {heads: class of transformers}. A model is published as the first class whose
        heads it has.

    config.json:
      fields: {field of Config, or classifier_dropout: key of config.json}.
      activations: {activation in config.json: activation in Config}; the first name is written.
      fixed: {key of config.json: value} of settings that change the numbers and that Firth
        computes for this value alone. A missing key means this value.
      from_config: called as (spec, config, where) after `fields` are read. It sets the fields of
        the spec that config.json states in another way, and raises FirthError, beginning with
        `where`, for values that Firth does not compute.
      to_config: called as (config, spec) after `fields` are written. It sets those keys of
        config.json, and raises FirthError for a spec that config.json cannot express.
    """

    modules: tuple[tuple[str, str, str], ...] = ()
    tied: tuple[tuple[str, str, str], ...] = ()
    indices: dict[str, str] = dataclasses.field(default_factory=lambda: {"i": "num_layers"})
    prefix: str = ""
    buffers: tuple[str, ...] = ()
    parameterless_heads: dict[str, str] = dataclasses.field(default_factory=dict)
    exclusive_heads: tuple[tuple[str, str, str], ...] = ()
    architectures: dict[tuple[str, ...], str] = dataclasses.field(default_factory=dict)
    fields: dict[str, str] = dataclasses.field(default_factory=dict)
    activations: dict[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    fixed: dict[str, object] = dataclasses.field(default_factory=dict)
    from_config: Callable[[dict, dict, str], None] | None = None
    to_config: Callable[[dict, dict], None] | None = None


def layer_modules(name: str, *modules, path: str = "encoder/stack/layer_{i}") -> tuple:
    """Rows of a layer's modules, given by their paths and names within the layer.

    `path` and `name` are those of the layer itself.
    """
    return tuple((f"{path}/{inner}", f"{name}.{leaf}", kind) for inner, leaf, kind in modules)
