"""Handle clients that fail or lie: valid replies, limits of claims, and rounds that survive failures.

``faults.py`` makes clients fail on purpose, for tests.
"""
