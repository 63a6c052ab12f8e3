"""Batches of examples from a store."""
