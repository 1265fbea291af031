"""What methods stand on: rounds, the central mode and its statement, training."""
