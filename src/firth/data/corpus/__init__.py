"""From text files to a store of token ids."""
