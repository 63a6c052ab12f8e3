"""Several labelled tasks of one run: their names and files, and batches that take turns."""
