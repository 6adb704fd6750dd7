"""Tune methods with equal numbers of trials, judged on held-out training data, never on test data.

Start with ``tune.py``; options declare their search as ``Tunable``.
"""
