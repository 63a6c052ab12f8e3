"""What builds parts of a run from single sections of its config."""
