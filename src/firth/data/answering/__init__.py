"""Questions on texts whose answers are spans of them: files, windows, scores and decoding."""
