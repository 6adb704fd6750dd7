"""Training that survives interruptions: checkpoints, journals, and signals that end a process only between rounds.

Later versions must be able to read the files written here.
"""
