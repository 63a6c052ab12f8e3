"""What a run of a labelled task has of its own, where finetune.py does not make it."""
