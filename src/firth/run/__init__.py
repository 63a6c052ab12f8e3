"""The parts of a run: those built from a config, the compiled step, evaluation."""
