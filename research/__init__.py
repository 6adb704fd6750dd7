"""Experiments about methods: the paper's figures and tables, and our own comparisons. Not part of the wheel.

Each experiment has a registration, a ``run`` and a ``page`` (``experiment.py``); ``catalog.py`` lists all of them, and
``python -m research`` runs them. The package wafl imports nothing from here.

``reproduction/`` is about the paper. ``leaderboard/``, ``promises/`` and ``registered/`` were registered before they
ran; ``exploratory/`` was not. ``jobs.py`` keeps finished work, ``old_names.py`` reads old files, and ``pages.py``
writes the pages of evidence.
"""
