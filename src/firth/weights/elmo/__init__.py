"""ELMo in its released layout: options.json and weights.hdf5."""
