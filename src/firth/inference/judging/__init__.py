"""What a fine-tuned model gets wrong on a split that it has labels for: the data of a report."""
