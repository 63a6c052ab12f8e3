"""Read and write models: Firth's directories, published ones, and original checkpoints."""
