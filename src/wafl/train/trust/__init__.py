"""Clients that fail or lie: which replies count, what clients may claim, and rounds that survive failures.

``faults.py`` lets clients fail on purpose, to test a training.
"""
