"""Make training survive interruptions: checkpoints, journals, and signals that stop it only between rounds.

Later versions must be able to read the files written here.
"""
