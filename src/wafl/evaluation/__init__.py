"""Evaluate models on the clients' test data: one run, or many runs and attacks in one pass.

``evaluate.py`` and ``compare.py`` are public; ``score.py`` contains their results.
"""
