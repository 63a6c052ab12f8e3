"""How a model's functions run: compiled once a shape, kept on disk, in the dtype asked for."""
