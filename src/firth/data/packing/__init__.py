"""Packed rows: several labelled texts in a row, each read as if it were alone."""
