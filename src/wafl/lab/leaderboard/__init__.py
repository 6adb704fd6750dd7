"""Methods on natural clients: ``tasks.py`` has the data sets, ``measure.py`` the numbers, ``tables.py`` the tables."""
