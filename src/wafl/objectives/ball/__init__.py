"""Implement the Wasserstein ball and its relatives: targets of moves, ascents, and shapes of the ball.

``wasserstein.py`` contains the objective; the ``*_space.py`` files contain its ascents.
"""
