"""Training of word vectors: the corpus, the two methods, and the run itself."""
