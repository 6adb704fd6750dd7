"""Keep studies on disk. A study is a folder with the runs of an experiment, which survives crashes and can be repeated.

``study.py`` trains one; ``folder.py`` is its folder.
"""
