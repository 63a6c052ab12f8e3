"""Text to ids and back: loading and training vocabularies, special tokens."""
