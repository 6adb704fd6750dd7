"""The same number of trials for every method, judged on held-out training data, never on test data.

- ``tune.py``: :func:`wafl.tune`;
- ``candidate.py``: a method to tune, and the run of one trial;
- ``space.py``: what is searched, from what the options declare;
- ``draw.py``: which points of the space are tried;
- ``held_out.py``: what trials train on, and what they are judged on;
- ``goal.py``: what is best;
- ``result.py``: what was tried, what was chosen, and why.
"""
