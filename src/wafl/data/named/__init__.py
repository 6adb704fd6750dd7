"""Data sets by name: where they come from, how their files are read, how they become clients.

``datasets.py`` and ``domains.py`` are public; a new natural data set is an entry of ``natural.toml``.
"""
