"""How good models are: one run, many runs, and what a score says."""
