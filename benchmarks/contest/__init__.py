"""wafl against others on this machine: the same work, batches and start for all, each in a process of its own.

``contest.py`` runs it; ``shared/`` is all that a contestant is handed.
"""
