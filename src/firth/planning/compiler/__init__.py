"""Compiled programs: their operations, time on a chip, and memory."""
