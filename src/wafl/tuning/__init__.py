"""The same number of trials for every method (``tune.py``), judged on held-out training data, never on test data."""
