"""The objective of several labelled tasks at once."""
