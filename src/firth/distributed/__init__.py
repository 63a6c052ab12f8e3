"""Several processes as one job: joining, agreeing, noticing one that died."""
