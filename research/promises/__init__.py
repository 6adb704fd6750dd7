"""Promises about the next client, checked on sealed clients.

``tasks.py`` splits clients, ``phases.py`` issues promises and opens sealed clients, ``verdict.py`` judges, ``page.py``
has the tables, and ``command.py`` the command.
"""
