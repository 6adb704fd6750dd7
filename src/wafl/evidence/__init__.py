"""The evidence: the paper's figures and tables made again, and a leaderboard on natural clients.

- ``files.py``: the experiments, one TOML file each, by protocol and scale;
- ``reproduce.py``: tune, train and test one of them; keep what is done;
- ``measure.py``: saved runs under several attacks, seed by seed;
- ``draw.py``: pictures from the numbers alone;
- ``leaderboard.py``: methods on natural clients, tuned alike; ``natural.py``: on which;
- ``tables.py``: the tables of the pages, from the numbers;
- ``domains.py``: the domain tasks as clients and a target;
- ``placement.py``: images placed, zoomed and turned otherwise: to judge trials by, and as the shape of a ball;
- ``statistics.py``: means, intervals, paired differences, ranks.
"""
