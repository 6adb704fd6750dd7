"""Prove upper bounds on the worst loss inside the ball, display them, and extend them from examples to distributions.

Start with ``certify.py``.
"""
