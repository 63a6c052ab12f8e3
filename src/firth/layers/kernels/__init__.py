"""Kernels written by hand for what XLA computes slowly."""
