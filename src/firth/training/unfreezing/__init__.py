"""Train a model from the head down, a layer more at a time."""
