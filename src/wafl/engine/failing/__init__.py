"""Clients that fail: on purpose, to test a training, and rounds that survive it.

Which replies count is decided in ``wafl.rounds.admission``.
"""
