"""The same number of trials for every method, judged on held-out training data, never on test data.

``tune.py`` is the front door; what is searched is declared by options as ``Tunable``.
"""
