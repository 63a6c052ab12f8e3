"""Logistic regression of the features of a text: a weight for each feature and label."""
