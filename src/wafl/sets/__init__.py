"""Prediction sets for a client that never trained: scores, thresholds, shifts, and the object that users get.

``answers.py`` is what one client computes, ``thresholds.py`` what follows from all answers. Both are pure, so that
they may run in different places.
"""
