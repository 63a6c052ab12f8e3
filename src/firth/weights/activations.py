"""What config.json calls the activations, in both directions.

A family that means something of its own by a name has a table ACTIVATION_NAMES.
"""

from firth.errors import FirthError

ACTIVATIONS = {  # there -> here; the first of several is what is written
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
}


def read(value, module, where: str) -> str:
    """The activation that a config.json calls `value`; FirthError, beginning with `where`."""
    known = getattr(module, "ACTIVATION_NAMES", ACTIVATIONS)
    if not isinstance(value, str) or value not in known:
        raise FirthError(f"{where}={value!r} is not supported; one of {', '.join(known)}")
    return known[value]


def write(value: str, module) -> str:
    """What the family's published layout calls an activation."""
    known = getattr(module, "ACTIVATION_NAMES", ACTIVATIONS)
    if value not in known.values():
        raise FirthError(
            f"model.activation={value!r} has no name in the published layout of this family, which "
            f"has {', '.join(dict.fromkeys(known.values()))}; keep it as a Firth directory"
        )
    return next(there for there, here in known.items() if here == value)
