"""What a run is made of: its parts by a config, the compiled step, evaluation."""
