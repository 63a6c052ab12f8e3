"""The parts of a run that learns to answer questions from texts."""
