"""Models that read words by their characters."""
