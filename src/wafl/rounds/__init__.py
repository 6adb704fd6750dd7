"""The server's side of Algorithm 1: what is asked each round, which replies count, what clients may claim.

``algorithm.py`` is the algorithm; it knows parts by their base classes alone.
"""
