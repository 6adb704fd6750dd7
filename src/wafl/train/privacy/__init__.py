"""Differential privacy of clients, and what it spends.

``mechanism.py`` clips and adds noise; ``accountant.py`` counts.
"""
