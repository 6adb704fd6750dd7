"""How good models are on their clients' test data.

- ``evaluate.py``: one run, clean, attacked or shifted;
- ``compare.py``: many runs, many attacks, many shares of attacked clients, in one pass;
- ``generalization.py``: training, test and unseen data, over several seeds;
- ``score.py``: what a test returns: means, the worst clients, intervals.
"""
