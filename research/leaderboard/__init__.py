"""Methods on natural clients, tuned alike, on two tracks, as ``experiments/registered/natural.toml`` says.

``tasks.py`` has the data sets, ``rows.py`` the methods and ``references.py`` what is none, ``scores.py`` what is
measured, ``measure.py`` the work, ``tables.py`` the page's tables.
"""
