"""Differential privacy of clients: ``mechanism.py`` clips and adds noise, ``accountant.py`` counts."""
