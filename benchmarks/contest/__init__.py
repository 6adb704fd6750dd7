"""wafl against others on this machine: the same work, batches and start for all, each in its own process.

``contest.py`` runs it; ``shared/`` is all that a contestant is handed.
"""
