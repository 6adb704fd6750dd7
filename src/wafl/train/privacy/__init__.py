"""Differential privacy of clients, or of their records, and what it spends.

``mechanism.py`` adds noise to updates, and ``records.py`` to each local step; ``noise.py`` draws it on a node, and
``accountant.py`` counts.
"""
