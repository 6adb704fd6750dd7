"""The Wasserstein ball and its relatives: ``wasserstein.py`` is the objective, ``*_space.py`` are where it climbs."""
