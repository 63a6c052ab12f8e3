"""config.json of the published (Hugging Face) form, read and written.

`Published` of each family (`firth.models.published`) says which keys its fields have.
"""

from firth.errors import FirthError
from firth.models import FAMILIES, MODEL_TYPES
from firth.models.model import family
from firth.models.published import Published
from firth.weights.description import EXECUTION, Description, check_field, default_fields

MULTILABEL = "multi_label_classification"  # problem_type of a text with any number of labels


def read_config(config: dict, where) -> Description:
    """The model that a config.json describes. The tensors tell its heads: they are () here.

    Raises FirthError, beginning with `where`, for an unknown family and for settings that Firth
    does not compute.
    """
    kind, kinds = config.get("model_type"), {MODEL_TYPES.get(name, name): name for name in FAMILIES}
    if not isinstance(kind, str) or kind not in kinds:
        raise FirthError(
            f"{where}: model_type {kind!r} is none that Firth reads ({', '.join(kinds)})"
        )
    name = kinds[kind]
    published = family(name).PUBLISHED
    for key, value in published.fixed.items():
        if config.get(key, value) not in (value, None):
            raise FirthError(f"{where}: {key}={config[key]!r} is not supported, only {value!r}")
    defaults = default_fields(name)
    spec = {"family": name} | {k: v for k, v in defaults.items() if k not in EXECUTION}
    for field, key in published.fields.items():
        value = config.get(key)
        if value is None:
            value = spec["dropout"] if field == "classifier_dropout" else defaults[field]
        elif field == "activation":
            value = _read_activation(value, published, f"{where}: {key}")
        check_field(value, defaults[field], f"{where}: {key}")
        spec[field] = value
    if published.from_config:
        published.from_config(spec, config, where)
    num_labels, labels = _labels(config, where)
    problem = config.get("problem_type")
    regression = problem == "regression" or (problem is None and num_labels == 1)
    several = problem == MULTILABEL
    return Description(spec, (), num_labels, labels, regression, multilabel=several)


def write_config(description: Description, base: dict, pad_id: int | None) -> dict:
    """The config.json of a model.

    Args:
      description: the model.
      base: the config.json that the model was published with, or {}. Keys that Firth does not know
        are copied from it.
      pad_id: the tokenizer's id of padding, or None without a tokenizer.

    Raises FirthError for a model that the family's published form cannot express.
    """
    name = description.spec["family"]
    published = family(name).PUBLISHED
    width = description.spec.get("embedding_size", 0)
    if (
        width not in (0, description.spec["hidden_size"])
        and "embedding_size" not in published.fields
    ):
        raise FirthError(
            f"the published layout of {name} has no place for embeddings {width} wide under layers "
            f"{description.spec['hidden_size']} wide; keep it as a Firth directory"
        )
    if "choice" in description.heads and ("choice",) not in published.architectures:
        raise FirthError(
            f"the published layout of {name} has no head for choices; keep it as a Firth directory"
        )
    pooling = description.spec.get("classifier_pooling", "cls")
    classifies = {"classifier", "choice", "tasks"} & set(description.heads)
    if classifies and pooling != "cls" and "classifier_pooling" not in published.fields:
        raise FirthError(
            f"the published layout of {name} has classifiers of the first token alone, and this "
            f"model's read the {pooling} (model.classifier_pooling); keep it as a Firth directory"
        )
    config = dict(base)
    for key in ("dtype", "torch_dtype"):
        if key in config:
            config[key] = "float32"
    config["architectures"] = [architecture(description)]
    config["model_type"] = MODEL_TYPES.get(name, name)
    spec = default_fields(name) | description.spec
    for field, key in published.fields.items():
        value = spec[field]
        config[key] = _write_activation(value, published) if field == "activation" else value
    if published.to_config:
        published.to_config(config, spec)
    if "pad_token_id" not in published.fields.values() and (
        pad_id is not None or "pad_token_id" not in config
    ):
        config["pad_token_id"] = pad_id or 0
    if "classifier" in description.heads:
        labels = description.labels or _default_labels(description.num_labels)
        config["id2label"] = {str(i): label for i, label in enumerate(labels)}
        config["label2id"] = {label: i for i, label in enumerate(labels)}
        kind = "regression" if description.regression else "single_label_classification"
        config["problem_type"] = MULTILABEL if description.multilabel else kind
    return config


def architecture(description: Description) -> str:
    """The class of transformers that a model is published as.

    Raises FirthError for a family that transformers does not have.
    """
    name = description.spec["family"]
    classes = family(name).PUBLISHED.architectures
    if not classes:
        raise FirthError(
            f"there is no published layout for {name}, which transformers does not have; "
            "keep it as a Firth directory or a workdir"
        )
    return next(name for heads, name in classes.items() if set(heads) <= set(description.heads))


def _read_activation(value, published: Published, where: str) -> str:
    """The activation in Config that a config.json calls `value`."""
    known = published.activations
    if not isinstance(value, str) or value not in known:
        raise FirthError(f"{where}={value!r} is not supported; one of {', '.join(known)}")
    return known[value]


def _write_activation(value: str, published: Published) -> str:
    """The name that config.json has for an activation in Config."""
    known = published.activations
    if value not in known.values():
        raise FirthError(
            f"model.activation={value!r} has no name in the published layout of this family, which "
            f"has {', '.join(dict.fromkeys(known.values()))}; keep it as a Firth directory"
        )
    return next(name for name, activation in known.items() if activation == value)


def _labels(config: dict, where) -> tuple[int, tuple[str, ...] | None]:
    """(number of labels, their names), with None for the placeholders LABEL_0, LABEL_1 ..."""
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels", 2)
        check_field(count, 2, f"{where}: num_labels")
        return count, None
    try:
        labels = tuple(str(names[str(i)]) for i in range(len(names)))
    except (KeyError, TypeError):
        raise FirthError(f"{where}: id2label must map 0 .. C-1 to names, not {names!r}") from None
    if not labels:
        raise FirthError(f"{where}: id2label is empty")
    return len(labels), None if labels == _default_labels(len(labels)) else labels


def _default_labels(count: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{i}" for i in range(count))
