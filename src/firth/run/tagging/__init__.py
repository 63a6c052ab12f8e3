"""The parts of a run that learns tags of words."""
