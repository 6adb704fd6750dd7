"""Methods on natural clients, tuned alike.

``tasks.py`` has the data sets, ``measure.py`` the numbers, ``tables.py`` its table.
"""
