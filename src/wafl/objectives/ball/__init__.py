"""The Wasserstein ball and its relatives: where examples move, by which ascent, in which shape.

``wasserstein.py`` is the objective; the ``*_space.py`` files are where it climbs.
"""
