"""Protect clients, or their records, by differential privacy, and count the spent budget.

``mechanism.py`` adds noise to updates, and ``records.py`` to each local step; ``noise.py`` draws it on a node, and
``accountant.py`` counts.
"""
