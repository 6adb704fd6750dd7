"""Data sets by name; ``datasets.py``, ``domains.py`` are public, a natural one is a table in ``natural_tables.py``."""
