"""What a run takes before it runs: arithmetic, memory, time, money, and compiled programs."""
