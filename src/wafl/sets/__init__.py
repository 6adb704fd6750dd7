"""Compute prediction sets for a client that never trained: scores, thresholds, shifts, and the public object.

``answers.py`` contains the computation of one client, ``thresholds.py`` the conclusions from all answers. Both are
pure, so that they may run in different places.
"""
