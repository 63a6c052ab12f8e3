"""Files of predictions as the servers of benchmarks take them."""
