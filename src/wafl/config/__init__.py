"""Turn an experiment file into a plan: its allowed keys, their meaning, and the resulting trainings.

``experiment.py`` defines the file's form, ``plan.py`` the resulting plan.
"""
