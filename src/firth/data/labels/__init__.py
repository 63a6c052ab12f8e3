"""What labels count in a loss."""
