"""Firth: contextual word representations in JAX.

    import firth

    encoder = firth.load("runs/mini")  # a workdir, a published or Firth directory, or hf:org/name
    out = encoder(["The vase broke.", ("a first text", "a second")])
    out.hidden  # [N+1, B, L, D]: the embeddings and every layer
    encoder.fill("The [MASK] broke.")[0].choices  # masked language models
    encoder.generate("The vase")[0].text  # causal ones

Training, preparing text and everything else is the command: `firth --help`.
"""

__version__ = "0.1.0"


def load(source, *, dtype=None, heads=True, task=None):
    """Load a model and its tokenizer.

        encoder = firth.load("runs/mini", dtype="bfloat16", heads=["mlm"])
        encoder(["The vase broke."]).hidden

    Args:
      source: a published directory, a Firth directory, a workdir or "hf:org/name".
      dtype: of the computation, "float32" (default) or "bfloat16".
      heads: compute the logits of all heads (True), of none (False), or of the named ones.
      task: of a model of several tasks, the one whose head is the classifier.

    Returns a `firth.inference.encoder.Encoder`: call it with texts or with arrays of token ids.
    Raises FirthError, naming the file, if something is missing, damaged or not supported.
    """
    from firth.distributed.libtpu import leave_libtpu_alone

    leave_libtpu_alone()
    from firth.inference.encoder import load  # late: JAX takes seconds

    return load(source, dtype=dtype, heads=heads, task=task)
