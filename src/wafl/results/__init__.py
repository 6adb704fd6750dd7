"""Define the results of training: a run, its history, and the progress between rounds.

They are plain data, independent of the engine and of studies.
"""
