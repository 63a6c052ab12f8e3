"""What a model answers to questions on texts, and how good its answers are."""
