"""Classifiers with parts that no other head has."""
