"""Models whose layers are known: chains with written-down derivatives, which must give the plain model's numbers."""
