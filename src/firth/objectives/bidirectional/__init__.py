"""ELMo's objective: a language model each way, and its sampled softmax."""
