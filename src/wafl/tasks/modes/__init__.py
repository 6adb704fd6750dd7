"""What layers do besides computing, for ``task.py``: dropout, statistics, a layer's output as a space, lane by lane."""
