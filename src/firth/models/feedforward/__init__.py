"""Feed-forward networks over a window of words: language models before the recurrent ones."""
