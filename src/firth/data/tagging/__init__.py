"""Sentences whose words have tags: files, schemes of entities, rows, measures, baselines."""
