"""Several processes as one job: joining, exchanging data, detecting a process that died."""
