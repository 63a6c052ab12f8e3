"""Predictions of a fine-tuned model: labels with probabilities or scores, and how good they are."""
