"""Check a run: its cost before it starts, and its numbers in every round."""
