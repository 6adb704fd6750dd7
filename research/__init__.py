"""Experiments about methods: the paper's figures made again, the leaderboard, the contest for speed.

It may import everything; only ``wafl.cli`` imports it.
"""
