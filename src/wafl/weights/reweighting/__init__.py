"""Client weights from the losses of a cohort: CVaR, KL, chi-squared, q-FFL, TERM, SFAT, V-REx.

``base.py`` is what they share; each other file is one rule.
"""
