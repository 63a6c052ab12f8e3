"""Uses of a trained model: vectors, masked words, continuations, log-probabilities."""
