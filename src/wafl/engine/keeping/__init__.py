"""Training that survives: checkpoints, journals, and signals that end a process only between rounds.

What is written here must be readable by later versions.
"""
