"""Many runs of one recipe: their grid of settings, their processes, and what they came to."""
