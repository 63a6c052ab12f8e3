"""Weights for another vocabulary than their own."""
