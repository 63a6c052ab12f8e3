"""What a trained model is used for: vectors, blanks, continuations, log-probabilities."""
