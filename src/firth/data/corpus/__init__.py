"""Text files to a store of token ids."""
