"""Train a part of a model: low-rank updates of its kernels, or parameters chosen by name."""
