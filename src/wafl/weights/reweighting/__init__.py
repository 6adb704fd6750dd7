"""Client weights from a cohort's losses: CVaR, KL, chi-squared, q-FFL, TERM, SFAT, V-REx; ``base.py`` is shared."""
