"""A model and its loss as functions of a flat vector, for many lanes; start with ``task.py`` and ``problem.py``."""
