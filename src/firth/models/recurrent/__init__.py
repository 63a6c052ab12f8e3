"""Recurrent networks: language models whose state passes from one batch to the next."""
