"""From an experiment file, whose form is ``experiment.py``, to what is trained, ``plan.py``."""
