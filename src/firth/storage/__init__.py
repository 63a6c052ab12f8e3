"""Files on local disk and behind URLs."""
