"""Compute the paper's bounds and rates, one function per statement.

Each docstring names its statement and the correction, if there is one.
"""
