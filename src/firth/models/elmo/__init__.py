"""ELMo: deep bidirectional language models over characters."""
