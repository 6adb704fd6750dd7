"""Studies on disk: a folder with the runs of an experiment, which survives anything and can be repeated.

``study.py`` trains one, ``folder.py`` is its folder.
"""
