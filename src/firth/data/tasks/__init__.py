"""Labelled examples: files, length buckets, metrics."""
