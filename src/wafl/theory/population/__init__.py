"""Generalize from clients to their population: bounds for the next client.

Start with ``next_client.py``; ``intervals.py`` has the statistics, and ``levels.py`` the highest confidence
that few clients support.
"""
