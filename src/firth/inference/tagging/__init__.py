"""What a tagger says of the words of sentences, and how good it is."""
