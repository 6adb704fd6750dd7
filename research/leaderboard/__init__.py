"""Methods on natural clients, tuned alike, on two tracks, as ``experiments/registered/natural.toml`` says.

``tasks.py`` has the data sets, ``rows.py`` the methods, ``references.py`` the baselines, ``scores.py`` the metrics,
``measure.py`` the work, ``page.py`` the tables, and ``command.py`` the command. ``second.py`` is the second version
(``natural-2.toml``): ``sized.py`` has its methods, ``temperature.py`` its temperatures, ``second_page.py`` its tables.
"""
