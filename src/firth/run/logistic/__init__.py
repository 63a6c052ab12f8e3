"""Training and measuring a logistic regression of texts."""
