"""wafl against others on this machine: the same work, batches and start for all, each in its own process.

``contest.py`` runs it; a contestant gets ``shared/`` and nothing else.
"""
