"""Experiments about methods, for ``wafl.cli`` alone: the paper's figures, the leaderboard, the contest for speed."""
