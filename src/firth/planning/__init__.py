"""The cost of a run before it runs: arithmetic, memory, time, money, and compiled programs."""
