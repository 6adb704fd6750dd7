"""Load data sets by name: their sources, the readers of their files, and their division into clients.

``datasets.py`` and ``domains.py`` are public; a new natural data set is an entry of ``natural.toml``.
"""
