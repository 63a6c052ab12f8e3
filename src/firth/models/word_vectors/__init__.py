"""Word vectors: word2vec and GloVe, one vector a word, and the files that hold them."""
