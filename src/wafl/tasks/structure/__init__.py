"""Models whose layers are known: chains of plain layers with written-down derivatives.

Anything here must give the numbers of the plain model (tests/tasks).
"""
