"""Weights in and out: Firth's own directories, published ones, and those of the original code."""
