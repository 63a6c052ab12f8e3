"""What word vectors are for: nearest words, analogies, and vectors of texts."""
