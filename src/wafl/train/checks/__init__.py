"""Check a training: its cost before it starts, and its numbers in every round."""
