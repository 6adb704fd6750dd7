"""From an experiment file to a plan: which keys it may have, what they mean, and what is trained.

``experiment.py`` is the file's form, ``plan.py`` what becomes of it.
"""
