"""From text and labelled tasks to batches. Knows neither models nor objectives."""
