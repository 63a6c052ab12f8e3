"""State, optimisation, sharding, checkpoints and metrics. Knows neither models nor objectives."""
