"""Language models of every kind: their log-probabilities on a text, mixtures and caches."""
