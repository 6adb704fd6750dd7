"""wafl against others on this machine: ``contest.py`` holds it, ``shared/`` is all that a contestant is handed."""
