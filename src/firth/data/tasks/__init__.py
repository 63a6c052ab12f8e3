"""Labelled tasks: files, length buckets, metrics."""
