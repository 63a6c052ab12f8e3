"""The recipes that Firth ships: `--config bert.py:mini` finds them by name."""
