"""Count-based n-gram models, in numpy: counting, smoothing, scoring, ARPA files."""
