"""Words from their characters."""
