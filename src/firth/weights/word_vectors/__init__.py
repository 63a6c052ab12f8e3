"""Files of word vectors, in and out."""
