"""What labels count in a loss, and several labels of one text."""
